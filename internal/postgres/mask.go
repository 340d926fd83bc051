package postgres

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/safefile"
)

const mask = "xxxxx"

// encodingRule is what a person whose password is misread has to know.
const encodingRule = `in a URL write special characters of the password percent-encoded (@ as %40, / as %2F, % as %25); ` +
	`in key=value form put it in single quotes, with \ before ' and \`

// Redact returns what dsn connects to with a mask for the password, for logs and for people. Options are
// left out. A string that cannot be read is not repeated at all, since no one knows which part of it
// is the password.
func Redact(dsn string) string {
	parsed, err := parse(dsn)
	if err != nil {
		return "(a connection string that cannot be read)"
	}
	config := &parsed.ConnConfig.Config
	u := url.URL{Scheme: "postgres", User: url.User(config.User), Path: "/" + config.Database}
	if config.Password != "" {
		u.User = url.UserPassword(config.User, mask)
	}
	if strings.HasPrefix(config.Host, "/") {
		u.RawQuery = url.Values{"host": {config.Host}, "port": {fmt.Sprint(config.Port)}}.Encode()
	} else if strings.Contains(config.Host, ":") {
		u.Host = fmt.Sprintf("[%s]:%d", config.Host, config.Port)
	} else {
		u.Host = fmt.Sprintf("%s:%d", config.Host, config.Port)
	}
	return u.String()
}

// Mask returns err with every password of the connection strings replaced in its text, and with the
// text of pgx about a connection string that it could not parse replaced as a whole. errors.Is and
// errors.As see through it. Mask(nil) is nil.
func Mask(err error, dsns ...string) error {
	if err == nil {
		return nil
	}
	var unparsed *pgconn.ParseConfigError
	if errors.As(err, &unparsed) {
		return parseError(err)
	}
	text := err.Error()
	for _, dsn := range dsns {
		for _, secret := range secrets(dsn) {
			text = strings.ReplaceAll(text, secret, mask)
		}
	}
	if text == err.Error() {
		return err
	}
	return &maskedError{text, err}
}

// ConnectError describes why no connection could be made with dsn: to what, the cause, and what a
// person can do about it.
func ConnectError(err error, dsn string) error {
	config, parseErr := ConnConfig(dsn)
	if parseErr != nil {
		return parseErr
	}
	hint := ""
	switch Code(err) {
	case "28P01", "28000":
		hint = ": check user, password and pg_hba.conf; " + encodingRule
	case "3D000":
		hint = ": create the database or correct its name"
	case "42704", "22023":
		// A parameter that the server does not know may be the rest of a password that was cut in two.
		return &maskedError{"connect to postgres: the server refuses an option of the connection string: " + encodingRule, err}
	}
	text := fmt.Sprintf("connect to %s: %s%s", target(&config.Config), connectReason(err), hint)
	return Mask(&maskedError{text, err}, dsn)
}

// maskedError says something else than the error it wraps.
type maskedError struct {
	text string
	err  error
}

func (e *maskedError) Error() string { return e.text }
func (e *maskedError) Unwrap() error { return e.err }

// unambiguous refuses a URL in which an "@" of the password may have been taken for the end of it. pgx
// would read one, and the rest of the password would come back as a host that cannot be found.
func unambiguous(dsn string) error {
	_, rest, isURL := strings.Cut(dsn, "://")
	if !isURL || !strings.HasPrefix(dsn, "postgres") {
		return nil
	}
	// As pgx and libpq do: user and password end at the first "@", unless a "/" comes before it.
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' {
		rest = rest[i+1:]
	}
	if strings.Contains(rest, "@") {
		return errors.New("read connection string: more than one @, or a / before it: " + encodingRule)
	}
	return nil
}

// parseError says why pgx refuses a connection string, in words that are all in this function: pgx masks
// as well as it can, but of an unencoded password it may print a part.
func parseError(err error) error {
	for _, reason := range []string{
		"failed to read service", "invalid sslcertmode", "invalid connect_timeout", "could not match",
		"invalid port", "failed to configure TLS", "unknown target_session_attrs", "min_protocol_version",
		"max_protocol_version", "channel_binding", "require_auth", "pool_", "statement_cache_capacity",
		"description_cache_capacity", "default_query_exec_mode",
	} {
		if !strings.Contains(err.Error(), reason) {
			continue
		}
		var file *fs.PathError
		if reason == "failed to configure TLS" && errors.As(err, &file) {
			return fmt.Errorf("read connection string: TLS: %w", file)
		}
		reason = strings.TrimPrefix(reason, "failed to ")
		return fmt.Errorf("read connection string: %s: correct that option; if there is none, %s", reason, encodingRule)
	}
	return errors.New("read connection string: neither a postgres:// URL nor key=value pairs: " + encodingRule)
}

// Passwords returns the passwords of connection strings as they could turn up elsewhere, for a mask of another kind of
// text.
func Passwords(dsns ...string) []string {
	var all []string
	for _, dsn := range dsns {
		all = append(all, secrets(dsn)...)
	}
	return all
}

// secrets returns the password of dsn in the spellings in which it could turn up, longest first, and the one that it
// had at the start.
func secrets(dsn string) []string {
	if !safefile.IsLive(dsn) {
		return secretsIn(dsn)
	}
	return append(secretsIn(safefile.Latest(dsn)), secretsIn(safefile.AtStart(dsn))...)
}

func secretsIn(dsn string) []string {
	parsed, err := parse(dsn)
	if err != nil || parsed.ConnConfig.Password == "" {
		return nil
	}
	password := parsed.ConnConfig.Password
	for _, public := range []string{parsed.ConnConfig.User, parsed.ConnConfig.Database, parsed.ConnConfig.Host} {
		if password == public {
			return nil // masking it would hide who and where, which is no secret
		}
	}
	spellings := []string{url.QueryEscape(password), url.PathEscape(password), password}
	if _, rest, ok := strings.Cut(dsn, "://"); ok {
		if userinfo, _, ok := strings.Cut(rest, "@"); ok {
			if _, raw, ok := strings.Cut(userinfo, ":"); ok && raw != "" {
				spellings = append([]string{raw}, spellings...)
			}
		}
	}
	return spellings
}
