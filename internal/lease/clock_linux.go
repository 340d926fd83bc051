package lease

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is a clock that also counts while the machine is suspended. (clock_gettime(2), CLOCK_BOOTTIME)
func bootTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic("lease: no CLOCK_BOOTTIME: " + err.Error()) // Linux has it since 2.6.39
	}
	return time.Duration(now.Nano())
}

// namespace tells in which namespace of process ids, of which boot of which machine, this process runs.
func namespace() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return random()
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return random()
	}
	sum := sha256.Sum256([]byte(string(boot) + space))
	return hex.EncodeToString(sum[:3])
}
