package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"

	"github.com/backendstart/walpost/internal/app"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/lessons/httpapi"
	"github.com/backendstart/walpost/internal/logs"
	"github.com/backendstart/walpost/internal/mask"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/migrations"
)

const description = `Walpost posts from the WAL: it turns rows committed to a Postgres outbox table into deliveries.
It holds a logical replication slot instead of polling, keeps the order within a key, and never lets
Postgres forget an event before every subscriber has it.

  walpost demo                        see it work, with a Postgres of its own

  export WALPOST_DATABASE_URL=postgres://user:password@host:5432/database
  walpost migrate                     make the tables
  walpost doctor                      check settings and rights, and print what fixes them
  walpost api                         complete lessons over HTTP
  walpost relay                       deliver what they committed
  walpost status                      see where slot and subscribers stand, and what is owed

Options come from flags, WALPOST_… variables and walpost.yaml, in that order.`

// commands is the command line: one field per command.
type commands struct {
	Demo    demoCommand    `cmd:"" help:"See it work: private Postgres, API, relay and traffic in one process."`
	API     apiCommand     `cmd:"" name:"api" help:"Serve the completions API."`
	Relay   relayCommand   `cmd:"" help:"Deliver the outbox to the subscribers."`
	Migrate migrateCommand `cmd:"" help:"Bring the tables up to this version."`

	Doctor      doctorCommand      `cmd:"" help:"Check settings, rights, slot and publication, and say what fixes them."`
	Sources     sourcesCommand     `cmd:"" help:"Show what walpost finds in the outbox tables, and suggest a configuration."`
	Status      statusCommand      `cmd:"" help:"Show where slot and subscribers stand, and what is owed."`
	Top         topCommand         `cmd:"" help:"Watch the running relay at a terminal."`
	Subscribers subscribersCommand `cmd:"" help:"List, pause, resume or forget subscribers."`
	Owed        owedCommand        `cmd:"" help:"List what subscribers are owed; retry (redrive), discard or add it."`
	Deadletters deadlettersCommand `cmd:"" help:"List, retry (redrive) or discard dead letters: owed with --state=dead."`
	Replay      replayCommand      `cmd:"" help:"Send a subscriber events again that the tables still have."`
	Event       eventCommand       `cmd:"" help:"Show everything that is known of an event."`
	Tail        tailCommand        `cmd:"" help:"Follow the attempts of the running relay."`

	Bench     benchCommand `cmd:"" help:"Measure speed and memory, compared with plain programs that do the same."`
	BenchPart benchPart    `cmd:"" name:"bench-part" hidden:"" help:"Processes of a bench."`

	Token      tokenCommand      `cmd:"" help:"Print a bearer token for the API."`
	Config     configCommand     `cmd:"" help:"Check the configuration, or show it."`
	Completion completionCommand `cmd:"" help:"Print the completion script of a shell."`
	Version    versionCommand    `cmd:"" help:"Print the version."`
}

type apiCommand struct {
	config.File
	config.Log
	config.Database
	config.API
}

func (apiCommand) Help() string {
	return `Serves the API of the learning platform: completing a lesson writes an event to the outbox.

  walpost api
  walpost api --auth=dev

Needs the tables (walpost migrate) and a key for tokens: WALPOST_JWT_SECRET or WALPOST_JWKS_URL. On your own machine --auth=dev trusts the header X-User-ID instead.

Next: walpost token --user 42, then PUT /api/progress/lessons/1/complete; /docs shows all routes.`
}

func (c apiCommand) Validate() error {
	return config.Invalid(needsDSN("database_url", c.DatabaseURL))
}

func (c apiCommand) Run(r *run) error {
	secrets := mask.New(append(postgres.Passwords(c.DatabaseURL.Live()), c.JWTSecret.Reveal())...)
	log := logs.NewService(r.Stderr, r.logHandler(c.Log, secrets))
	defer log.Flush()
	r.logFile(log.Logger)
	return app.RunAPI(r.ctx, c.Database, c.API, log.Logger)
}

type relayCommand struct {
	config.File
	config.Log
	config.Relay
	config.Mail
	config.Ops
}

func (relayCommand) Help() string {
	return `Examples:

  walpost relay
  walpost relay --config /etc/walpost.yaml --log-format json

Makes publication and slot if they are not there. That needs wal_level=logical, the role attribute REPLICATION, CREATE on the database and ownership of the tables. Start a second relay elsewhere as a standby.

Before: walpost doctor says what is missing. Next: walpost status, or GET /ready and /progress at the ops address; /metrics feeds Prometheus.`
}

func (c relayCommand) Validate() error {
	return config.Invalid(needsDSN("database_url", c.DatabaseURL), readableDSN("replication_url", c.ReplicationURL))
}

func (c relayCommand) Run(r *run) error {
	c.Relay.Flow = r.parser.Flow
	secrets := app.SecretsOf(c.Relay, c.Mail).With(c.OpsToken.Reveal())
	log := logs.NewService(r.Stderr, r.logHandler(c.Log, secrets))
	defer log.Flush()
	r.logFile(log.Logger)
	return app.RunRelay(r.ctx, c.Relay, c.Mail, c.Ops, r.Subscribers, log)
}

// logFile says which file a service has read, whether it was named or found.
func (r *run) logFile(log *slog.Logger) {
	if r.parser.Path != "" {
		log.Info("configuration read", "file", r.parser.Path)
	}
}

type migrateCommand struct {
	config.File
	config.Log
	config.Database
	Lessons bool `help:"Make the tables of the learning platform too, even where the configuration names a source or the database has other tables."`
}

func (migrateCommand) Help() string {
	return `Examples:

  walpost migrate

Makes the schema walpost, always. If walpost.yaml names no source, it makes the outbox and the tables of the learning platform too. In a database that has other tables it makes those of the learning platform only with --lessons. Safe to repeat, and to run in several places at once. The role needs CREATE on the database.

Next: walpost relay`
}

func (c migrateCommand) Validate() error {
	return config.Invalid(needsDSN("database_url", c.DatabaseURL))
}

func (c migrateCommand) Run(r *run) error {
	sets := app.MigrationsOf(r.parser.Flow)
	if c.Lessons {
		sets = app.MigrationsOf(config.Flow{})
	}
	if slices.Contains(sets, migrations.Lessons) {
		if err := migrations.CheckLessons(r.ctx, c.DatabaseURL.Live(), c.Lessons); errors.Is(err, migrations.ErrForeign) {
			return config.Invalid(err)
		} else if err != nil {
			return err
		}
	}
	applied, err := migrations.Apply(r.ctx, c.DatabaseURL.Live(), r.logger(c.Log, r.Stderr), sets...)
	if err == nil && applied == 0 {
		fmt.Fprintln(r.Stdout, "All is up to date.")
	}
	return err
}

type tokenCommand struct {
	config.File
	JWTSecret config.Secret `name:"jwt-secret" env:"WALPOST_JWT_SECRET" placeholder:"SECRET" help:"Secret with which the API verifies tokens."`
	config.Claims
	User int64           `required:"" placeholder:"ID" help:"User of the token."`
	TTL  config.Duration `name:"ttl" type:"duration" default:"24h" placeholder:"DURATION" help:"How long the token is valid."`
	JSON bool            `name:"json" help:"Print JSON."`
}

func (tokenCommand) Help() string {
	return `Examples:

  walpost token --user 42
  curl -H "Authorization: Bearer $(walpost token --user 42)" http://127.0.0.1:8080/api/progress

Signs with WALPOST_JWT_SECRET, the secret of the API.`
}

func (c tokenCommand) Run(r *run) error {
	if c.JWTSecret == "" {
		return config.Invalid(errors.New("jwt_secret is not set: set WALPOST_JWT_SECRET to the secret of the API"))
	}
	token, err := httpapi.Token(httpapi.JWTOptions{Secret: c.JWTSecret.Reveal(), Audience: c.JWTAudience, Issuer: c.JWTIssuer}, c.User, c.TTL.Std())
	if err != nil {
		return config.Invalid(err)
	}
	if c.JSON {
		return writeJSON(r.Stdout, map[string]any{"token": token, "user": c.User, "expires_in": c.TTL.Std().Seconds()})
	}
	_, err = fmt.Fprintln(r.Stdout, token)
	return err
}

type configCommand struct {
	config.File
	config.Log
	config.Relay
	config.API
	config.Mail
	config.Ops
	config.RelayURL
	Show bool `help:"Print every option with its value and where it comes from; secrets are masked."`
	JSON bool `name:"json" help:"With --show: print JSON."`
}

func (configCommand) Help() string {
	return `Examples:

  walpost config
  walpost config --show > walpost.yaml

Reports every mistake at once and connects to nothing. --show prints a walpost.yaml to start from. Exit code 2: there is a mistake.`
}

func (c configCommand) Validate() error {
	return config.Invalid(readableDSN("database_url", c.DatabaseURL), readableDSN("replication_url", c.ReplicationURL))
}

func (c configCommand) Run(r *run) error {
	switch {
	case c.Show && c.JSON:
		return r.parser.ShowJSON(r.Stdout, r.parsed)
	case c.Show:
		return r.parser.Show(r.Stdout, r.parsed)
	}
	from := r.parser.Path
	if from == "" {
		from = "no file"
	}
	_, err := fmt.Fprintf(r.Stdout, "The configuration is fine (%s): sources %d, subscribers %d. --show prints it.\n",
		from, len(r.parser.Flow.Sources), len(r.parser.Flow.Subscribers))
	return err
}

type versionCommand struct {
	JSON bool `name:"json" help:"Print JSON."`
}

func (c versionCommand) Run(r *run) error {
	if c.JSON {
		return writeJSON(r.Stdout, map[string]string{"version": app.Version(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
	}
	_, err := fmt.Fprintf(r.Stdout, "walpost %s (%s, %s/%s)\n", app.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
