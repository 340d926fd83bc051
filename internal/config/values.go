package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/backendstart/walpost/internal/safefile"
)

// Mask stands for a secret wherever one would be printed.
const Mask = "********"

// Secret is text that must not be seen: every way of printing it prints Mask, or nothing when it is
// empty. Reveal gives the text to the one place that needs it.
type Secret string

// Reveal returns the text, of {file: path} that of this moment.
func (s Secret) Reveal() string { return safefile.Latest(string(s)) }

// Live returns the text for what reads a file again at each use, as packages postgres and webhook do.
func (s Secret) Live() string { return string(s) }

// String implements fmt.Stringer.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return Mask
}

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// Format implements fmt.Formatter: without it a verb that makes no sense for a string, like %d, would
// print the text itself.
func (s Secret) Format(f fmt.State, verb rune) {
	if verb == 'q' || verb == 'v' && f.Flag('#') {
		io.WriteString(f, s.GoString())
		return
	}
	io.WriteString(f, s.String())
}

// MarshalText masks the secret in JSON, in YAML and as a map's key.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON implements json.Marshaler.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(s.GoString()), nil }

// MarshalYAML masks the secret in YAML.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Size is a number of bytes, or one of Unlimited and Auto.
type Size int64

const (
	// Unlimited is larger than anything.
	Unlimited Size = math.MaxInt64
	// Auto leaves the choice to what the server says.
	Auto Size = -1
)

// units from large to small, so that String takes the largest that divides.
var units = []struct {
	name string
	size Size
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// ParseSize reads "32MiB", "10 GiB", "512KiB", "100B" or a plain number of bytes.
func ParseSize(text string) (Size, error) {
	digits := strings.TrimRight(text, "BKMGTikmgtb ")
	unit := strings.TrimSpace(text[len(digits):])
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a size, write one like 32MiB or 10GiB", text)
	}
	if unit == "" {
		return Size(n), nil
	}
	for _, u := range units {
		if unit != u.name {
			continue
		}
		if Size(n) > (Unlimited-1)/u.size {
			return 0, fmt.Errorf("%q is larger than any disk", text)
		}
		return Size(n) * u.size, nil
	}
	return 0, fmt.Errorf("%q has no known unit, use B, KiB, MiB, GiB or TiB", text)
}

// String writes the size as ParseSize reads it.
func (s Size) String() string {
	switch s {
	case Unlimited:
		return "unlimited"
	case Auto:
		return "auto"
	case 0:
		return "0"
	}
	for _, u := range units {
		if s%u.size == 0 {
			return strconv.FormatInt(int64(s/u.size), 10) + u.name
		}
	}
	panic("unreachable: every size is a multiple of a byte")
}

// MarshalText implements encoding.TextMarshaler.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Duration is a time.Duration that is written with days where that is shorter.
type Duration time.Duration

// Std is the duration for package time.
func (d Duration) Std() time.Duration { return time.Duration(d) }

var days = regexp.MustCompile(`^(\d{1,6})d(.*)$`)

// ParseDuration reads what time.ParseDuration reads, and days in front: "10s", "168h", "7d", "1d12h".
// Negative ones are refused.
func ParseDuration(text string) (Duration, error) {
	rest, total := text, time.Duration(0)
	if m := days.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1]) // six digits always fit
		total, rest = time.Duration(min(n, 100_000))*24*time.Hour, m[2]
		if n > 100_000 {
			return 0, fmt.Errorf("%q is longer than 100000d", text)
		}
	}
	if rest != "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 {
			return 0, fmt.Errorf("%q is not a duration, write one like 200ms, 10s, 1m or 7d", text)
		}
		total += d
	}
	if text == "" || total < 0 {
		return 0, fmt.Errorf("%q is not a duration, write one like 200ms, 10s, 1m or 7d", text)
	}
	return Duration(total), nil
}

// String writes the duration without its zero parts: "1m", not "1m0s".
func (d Duration) String() string {
	text := time.Duration(d).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Retention is how long a published row is kept; 0 is "off", for ever.
type Retention time.Duration

// Std is the retention for package time, 0 when rows are kept for ever.
func (r Retention) Std() time.Duration { return time.Duration(r) }

// ParseRetention reads a duration or "off". A duration of 0 is refused: it would delete a row while it
// is being marked.
func ParseRetention(text string) (Retention, error) {
	if text == "off" {
		return 0, nil
	}
	d, err := ParseDuration(text)
	if err == nil && d == 0 {
		err = errors.New("0 would delete rows at once, write off to keep them for ever")
	}
	return Retention(d), err
}

// String implements fmt.Stringer.
func (r Retention) String() string {
	if r == 0 {
		return "off"
	}
	return Duration(r).String()
}

// MarshalText implements encoding.TextMarshaler.
func (r Retention) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// The named kinds of scalar options: kong asks the one in an option's tag "type".
var mappers = []kong.Option{
	kong.NamedMapper("slot", textMapper(parseSlot)),
	kong.NamedMapper("identifier", textMapper(parseIdentifier)),
	kong.NamedMapper("listen", textMapper(parseListen)),
	kong.NamedMapper("opslisten", textMapper(parseOpsListen)),
	kong.NamedMapper("opsaddress", textMapper(parseOpsAddress)),
	kong.NamedMapper("httpurl", textMapper(parseHTTPURL)),
	kong.NamedMapper("reason", textMapper(parseReason)),
	kong.NamedMapper("positive", textMapper(parsePositive)),
	kong.NamedMapper("size", textMapper(parsePositiveSize)),
	kong.NamedMapper("budget", textMapper(parseBudget)),
	kong.NamedMapper("duration", textMapper(ParseDuration)),
	kong.NamedMapper("loglevel", textMapper(parseLevel)),
}

func textMapper[T any](parse func(string) (T, error)) kong.Mapper {
	return kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
		var text string
		if err := ctx.Scan.PopValueInto("text", &text); err != nil {
			return err
		}
		value, err := parse(text)
		if err != nil {
			return err
		}
		target.Set(reflect.ValueOf(value))
		return nil
	})
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// parseSlot takes the names that Postgres takes (manual, "Replication Slots": lower-case letters,
// digits and the underscore).
func parseSlot(text string) (string, error) {
	if !slotName.MatchString(text) {
		return "", fmt.Errorf("%q is not a slot name: use 1 to 63 of a-z, 0-9 and _", text)
	}
	return text, nil
}

func parseIdentifier(text string) (string, error) {
	if !isIdentifier(text) {
		return "", fmt.Errorf("%q is not a name in Postgres: use 1 to 63 bytes without quotes or control characters", text)
	}
	return text, nil
}

// isIdentifier refuses what Postgres would cut (NAMEDATALEN is 64) and what no one means.
func isIdentifier(text string) bool {
	return text != "" && len(text) <= 63 && utf8.ValidString(text) &&
		!strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == '"' || r == 0x7f })
}

func parseListen(text string) (string, error) {
	_, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return "", fmt.Errorf("%q is not an address to listen on: write host:port, [::1]:port or :port", text)
	}
	return text, nil
}

// parseOpsListen takes an address or a socket.
func parseOpsListen(text string) (string, error) {
	if strings.HasPrefix(text, "unix:") {
		return parseSocket(text)
	}
	return parseListen(text)
}

// parseOpsAddress takes an address that others can connect to.
func parseOpsAddress(text string) (string, error) {
	host, port, err := net.SplitHostPort(text)
	number, numberErr := strconv.ParseUint(port, 10, 16)
	if text != "" && (err != nil || host == "" || numberErr != nil || number == 0 || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("/?#@\\", r) })) {
		return "", fmt.Errorf("%q is not an address that others reach: write host:port", text)
	}
	return text, nil
}

// maxSocketPath leaves room for the folder in which the socket is made: sockaddr_un has 108 bytes, 104 on some systems.
const maxSocketPath = 80

func parseSocket(text string) (string, error) {
	path := strings.TrimPrefix(text, "unix:")
	switch {
	case !filepath.IsAbs(path) || filepath.Clean(path) != path || !isPrintable(path):
		return "", fmt.Errorf("%q is no socket: write unix: and an absolute path, as in unix:/run/walpost/ops.sock", text)
	case len(path) > maxSocketPath:
		return "", fmt.Errorf("%q is longer than %d bytes, and the path of a socket is short", text, maxSocketPath)
	}
	return text, nil
}

func isPrintable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

func parseHTTPURL(text string) (string, error) {
	if text == "" {
		return "", nil // as the file says it that config --show prints
	}
	if strings.HasPrefix(text, "unix:") {
		return parseSocket(text)
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is not an address to ask: write http://host:port or unix:/path", text)
	}
	return text, nil
}

// maxReason is the same at the ops API: a reason is read by people.
const maxReason = 2000

func parseReason(text string) (string, error) {
	if len(text) > maxReason {
		return "", fmt.Errorf("a reason has at most %d bytes", maxReason)
	}
	return text, nil
}

func parsePositive(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%q is not a whole number above 0", text)
	}
	return n, nil
}

func parsePositiveSize(text string) (Size, error) {
	size, err := ParseSize(text)
	if err == nil && size == 0 {
		err = errors.New("must be above 0")
	}
	return size, err
}

func parseBudget(text string) (Size, error) {
	switch text {
	case "auto":
		return Auto, nil
	case "unlimited":
		return Unlimited, nil
	}
	size, err := ParseSize(text)
	if err != nil {
		return 0, fmt.Errorf("%w, 0, auto or unlimited", err)
	}
	return size, nil
}

func parseLevel(text string) (slog.Level, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(text)); err != nil {
		return 0, fmt.Errorf("%q is not a log level: use debug, info, warn or error", text)
	}
	return level, nil
}
