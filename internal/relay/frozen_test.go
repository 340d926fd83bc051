package relay_test

import (
	"syscall"
	"testing"

	"github.com/backendstart/walpost/internal/testdb"
)

// S-56: the walsender is suspended while others write. A large transaction of tables that are not ours is no
// silence; the suspended one is measured, and its end, too.
func TestRelay_measuresTheSilenceOfAFrozenSender(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, map[string]string{"logical_decoding_work_mem": "64kB"}))
	sub := keeping(nil)
	o := options(t, db, sub)
	r := streaming(t, o)
	insert(db, "before", "a")
	sub.await(t, "before")
	junk(db, 64)
	if got := metric(t, o, "walpost_stream_silent_seconds", ""); got != 0 {
		t.Errorf("silent for %v s in a large transaction, want 0", got)
	}
	sender := int(db.Int(`SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`, db.Name))
	if err := syscall.Kill(sender, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(sender, syscall.SIGCONT)
	eventually(t, "the silence is measured", func() bool {
		junk(db, 1)
		return metric(t, o, "walpost_stream_silent_seconds", "") > 10
	})
	if err := syscall.Kill(sender, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the silence is over", func() bool { return metric(t, o, "walpost_stream_silent_seconds", "") == 0 })
	insert(db, "after", "a")
	sub.await(t, "after")
	r.shutDown()
}
