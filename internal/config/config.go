// Package config turns flags, WALPOST_… variables and walpost.yaml into plain structs, in that order of
// precedence, and refuses what makes no sense with all mistakes in one message. It opens no connection
// and starts nothing; package app does.
//
// A scalar option is one tagged field here: flag, variable, key in the file (the flag's name with "_",
// or the tag "file"), default and help all come from that line. Sources and subscribers are structs of
// their own (flow.go). docs/configuration.md has a row for each, which a test insists on.
package config

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
)

// File names the configuration file. A command that embeds it reads the file; one that does not, does not.
type File struct {
	Config string `short:"c" env:"WALPOST_CONFIG" placeholder:"PATH" help:"Configuration file. Without this option, walpost.yaml in the working directory, if there is one."`
}

// Log says how much is logged, and in which form.
type Log struct {
	LogLevel  slog.Level `env:"WALPOST_LOG_LEVEL" type:"loglevel" default:"info" placeholder:"LEVEL" help:"Log this level and above: debug, info, warn or error."`
	LogFormat string     `env:"WALPOST_LOG_FORMAT" enum:"auto,text,json" default:"auto" placeholder:"FORMAT" help:"text or json; auto is text at a terminal, else json."`
}

// Database is the connection that carries everything but the stream.
type Database struct {
	// DatabaseURL is a connection string as libpq takes it, a URL or key=value. A pooler may stand behind it.
	DatabaseURL Secret `env:"WALPOST_DATABASE_URL" placeholder:"DSN" help:"Postgres connection string, postgres://user:password@host:5432/database. The variable keeps the password out of the process list."`
}

// API is the completions API.
type API struct {
	APIListen string `env:"WALPOST_API_LISTEN" type:"listen" default:"127.0.0.1:8080" placeholder:"ADDRESS" help:"Address of the completions API; port 0 takes a free one."`
	// Auth is "jwt" or "dev". Dev trusts the header X-User-ID and is refused beyond loopback.
	Auth      string `env:"WALPOST_AUTH" enum:"jwt,dev" default:"jwt" placeholder:"MODE" help:"jwt verifies bearer tokens; dev trusts the header X-User-ID, on loopback only."`
	JWTSecret Secret `name:"jwt-secret" env:"WALPOST_JWT_SECRET" placeholder:"SECRET" help:"Secret that HS256 tokens are signed with."`
	JWKSURL   string `name:"jwks-url" env:"WALPOST_JWKS_URL" placeholder:"URL" help:"Public keys that tokens are verified with: an https URL or a file of a JSON Web Key Set. Needs jwt-audience and jwt-issuer."`
	Claims
}

// Claims are what tokens must say.
type Claims struct {
	JWTAudience string `name:"jwt-audience" env:"WALPOST_JWT_AUDIENCE" placeholder:"TEXT" help:"Audience: aud of a token must be this, or a list that has it. Required with jwks-url."`
	JWTIssuer   string `name:"jwt-issuer" env:"WALPOST_JWT_ISSUER" placeholder:"TEXT" help:"Issuer: iss of a token must be this. Required with jwks-url."`
}

// Mail is where the notifications subscriber sends its mails.
type Mail struct {
	SMTPURL Secret `name:"smtp-url" env:"WALPOST_SMTP_URL" placeholder:"URL" help:"Mail server for notifications, smtp://user:password@host:587?from=walpost@example.com; without it they are only logged."`
}

// Ops is the HTTP server for metrics and health.
type Ops struct {
	OpsListen  string `env:"WALPOST_OPS_LISTEN" type:"opslisten" default:"127.0.0.1:8081" placeholder:"ADDRESS" help:"Address of metrics, health and the ops API: host:port (port 0 takes a free one), or unix:/path for a socket that only its user can reach."`
	OpsAddress string `env:"WALPOST_OPS_ADDRESS" type:"opsaddress" placeholder:"HOST:PORT" help:"Address at which other machines reach this relay's ops API; a standby sends callers there for what only the leader knows. Default: ops-listen, with the name of this machine if it listens on every address."`
	OpsToken   Secret `env:"WALPOST_OPS_TOKEN" placeholder:"TOKEN" help:"Bearer token. When it is set, everything but /live, /metrics and the status words of /ready needs it, on loopback too."`
}

// RelayURL is where commands find a running relay.
type RelayURL struct {
	OpsURL string `name:"ops-url" env:"WALPOST_OPS_URL" type:"httpurl" placeholder:"URL" help:"Ops address of the running relay, http://host:port or unix:/path, for commands that ask it; default: ops-listen."`
}

// Ask is how a command asks a running relay.
type Ask struct {
	RelayURL
	OpsListen string `hidden:"" env:"WALPOST_OPS_LISTEN" type:"opslisten" default:"127.0.0.1:8081"`
	OpsToken  Secret `env:"WALPOST_OPS_TOKEN" placeholder:"TOKEN" help:"Bearer token of the relay, where it needs one."`
}

// URL is the address to ask, http://… without a slash at its end or unix:/path. An error says that it cannot be known.
func (a Ask) URL() (string, error) {
	if a.OpsURL != "" {
		return strings.TrimRight(a.OpsURL, "/"), nil
	}
	if strings.HasPrefix(a.OpsListen, "unix:") {
		return a.OpsListen, nil
	}
	host, port, err := net.SplitHostPort(a.OpsListen)
	if err != nil {
		return "", err
	}
	if port == "0" {
		return "", errors.New("the relay listens on a free port (ops_listen has port 0), so no one knows where: name its address with --ops-url")
	}
	if addr, err := netip.ParseAddr(host); host == "" || err == nil && addr.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port), nil
}

// Relay is everything that the relay reads. The zero value is not usable: it comes from a Parser, or
// from DefaultRelay.
type Relay struct {
	Database

	// ReplicationURL is "" when DatabaseURL serves for the stream too; Stream tells which one it is.
	ReplicationURL Secret `env:"WALPOST_REPLICATION_URL" placeholder:"DSN" help:"Connection string for the stream, when database-url leads through a pooler: a pooler cannot carry replication."`
	Slot           string `env:"WALPOST_SLOT" type:"slot" default:"walpost" placeholder:"NAME" help:"Replication slot; a server has only one of a name, whatever the database."`
	Publication    string `env:"WALPOST_PUBLICATION" type:"identifier" default:"walpost" placeholder:"NAME" help:"Publication of the outbox tables."`
	// WindowEvents and WindowBytes bound what is held of the stream until it is recorded.
	WindowEvents int  `env:"WALPOST_WINDOW_EVENTS" file:"window.events" type:"positive" default:"10000" placeholder:"N" help:"Open events that are held at most."`
	WindowBytes  Size `env:"WALPOST_WINDOW_BYTES" file:"window.bytes" type:"size" default:"32MiB" placeholder:"SIZE" help:"Bytes of open events that are held at most. A single larger event passes alone."`
	// MaxEvent is the size above which an event is not kept, but recorded as dead.
	MaxEvent Size `env:"WALPOST_MAX_EVENT" type:"size" default:"16MiB" placeholder:"SIZE" help:"Largest event that is delivered; a larger one becomes a dead letter."`
	// WALBudget is how much WAL debt may hold: a size, Unlimited, or Auto.
	WALBudget Size `name:"wal-budget" env:"WALPOST_WAL_BUDGET" type:"budget" default:"auto" placeholder:"SIZE" help:"WAL that debt may hold: a size, 0, unlimited, or auto (half of max_slot_wal_keep_size where the server sets it, else 10GiB)."`
	// OnLostSlot is "repair" or "stop".
	OnLostSlot string `env:"WALPOST_ON_LOST_SLOT" enum:"repair,stop" default:"repair" placeholder:"WHAT" help:"When the slot is lost or its stream may have a hole: repair sends every unpublished row from the table; stop says what may be missing and how to go on."`
	// Single tells that no other relay of this slot runs or stands by.
	Single bool     `env:"WALPOST_SINGLE" help:"This is the only relay of the slot. It takes no lease, and no other relay takes over from it."`
	Drain  Duration `env:"WALPOST_DRAIN" type:"duration" default:"20s" placeholder:"DURATION" help:"How long a stop may take to finish what is held. Recording takes up to 5s more."`

	Flow `kong:"-"`
}

// Stream is the connection string for replication.
func (r Relay) Stream() Secret {
	if r.ReplicationURL != "" {
		return r.ReplicationURL
	}
	return r.DatabaseURL
}

// StreamOption is the option that Stream comes from.
func (r Relay) StreamOption() string {
	if r.ReplicationURL != "" {
		return "replication_url"
	}
	return "database_url"
}

// DefaultRelay is the relay of the learning platform on the given database, with every option at its
// default.
func DefaultRelay(databaseURL string) Relay {
	return Relay{
		Database: Database{DatabaseURL: Secret(databaseURL)},
		Slot:     "walpost", Publication: "walpost",
		WindowEvents: 10_000, WindowBytes: 32 << 20, MaxEvent: 16 << 20,
		WALBudget: Auto, OnLostSlot: "repair", Drain: Duration(20e9),
		Flow: Lessons(),
	}
}
