package printable

import "fmt"

// Size writes a number of bytes for people, in the units of the configuration.
func Size(bytes int64) string {
	n := float64(bytes)
	for _, unit := range []string{"B", "KiB", "MiB"} {
		if n < 1024 {
			return fmt.Sprintf("%.0f %s", n, unit)
		}
		n /= 1024
	}
	return fmt.Sprintf("%.1f GiB", n)
}
