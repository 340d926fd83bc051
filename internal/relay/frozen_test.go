package relay_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
)

// S-56: the walsender is suspended while others write. A large transaction of tables that are not ours is no
// silence; the suspended one is measured, and its end, too.
func TestRelay_measuresTheSilenceOfAFrozenSender(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, map[string]string{"logical_decoding_work_mem": "64kB"}))
	sub := keeping(nil)
	o := options(t, db, sub)
	o, log := logged(t, o)
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
	// More than a minute, which is not shrunk: what is a silence is decided by its length.
	var problem string
	for limit := time.Now().Add(5 * time.Minute); problem == "" && time.Now().Before(limit); time.Sleep(time.Second) {
		junk(db, 1)
		health := r.Health()
		if said := strings.Join(health.Problems, "; "); !health.Ready && strings.Contains(said, "WAL sender") {
			problem = said
		}
	}
	for _, want := range []string{fmt.Sprintf("pid %d", sender), "has sent nothing for", "SIGCONT"} {
		if !strings.Contains(problem, want) {
			t.Errorf("it says %q, want %q in it", problem, want)
		}
	}
	if got := metric(t, o, "walpost_stream_silent_seconds", ""); got < 60 {
		t.Errorf("silent for %v s, want more than a minute", got)
	}
	if err := syscall.Kill(sender, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the silence is over", func() bool { return metric(t, o, "walpost_stream_silent_seconds", "") == 0 && r.Health().Ready })
	if got := strings.Count(log.String(), "the relay is not well"); got != 1 {
		t.Errorf("%d lines in the log say so, want one:\n%s", got, log.String())
	}
	insert(db, "after", "a")
	sub.await(t, "after")
	r.shutDown()
}
