package printable

import "testing"

func TestSize_isReadable(t *testing.T) {
	for bytes, want := range map[int64]string{0: "0 B", 1023: "1023 B", 4096: "4 KiB", 3 << 20: "3 MiB", 5 << 30: "5.0 GiB"} {
		if got := Size(bytes); got != want {
			t.Errorf("%d is %q, want %q", bytes, got, want)
		}
	}
}
