package testdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/migrations"
)

// serverSettings are those of every server that tests start. Tests lose nothing by a crash of the
// machine, so nothing is synced to disk; what a crash of Postgres alone does is not changed by that.
var serverSettings = map[string]string{
	"wal_level":             "logical",
	"max_replication_slots": "100",
	"max_wal_senders":       "100",
	"max_connections":       "200",
	"fsync":                 "off",
}

const howToGetOne = `Tests need a Postgres server, 14 or newer. One of these:
  scripts/ensure-postgres.sh                         installs one with the package manager
  export WALPOST_TEST_PG_BIN=/path/to/postgres/bin   uses these binaries
  export WALPOST_TEST_DATABASE_URL=postgres://…      uses a running server with wal_level=logical,
                                                     as a role that may create databases and replicate
  start Docker                                       a container of WALPOST_TEST_PG_IMAGE, default postgres:17;
                                                     TESTCONTAINERS_HOST_OVERRIDE=127.0.0.1 where tests run in a
                                                     container themselves and share the host's network
Docker and a running server are not enough for tests that crash or freeze one: those need the binaries.`

// sharedServer returns the admin connection string of the server that the tests of this binary share.
// It is started at the first call and not stopped: a private server ends with this process, and a
// container is removed by testcontainers' reaper. That makes a TestMain in every package needless,
// which is why this one variable is global.
var sharedServer = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute) // an image may have to be pulled
	defer cancel()
	if dsn := os.Getenv("WALPOST_TEST_DATABASE_URL"); dsn != "" {
		return dsn, usable(ctx, dsn)
	}
	server, err := startCopy(ctx, serverSettings)
	if err == nil {
		return server.DSN("postgres"), nil
	}
	if !errors.Is(err, pgserver.ErrNotFound) || os.Getenv("WALPOST_TEST_PG_BIN") != "" {
		return "", err
	}
	dsn, _, containerErr := startContainer(ctx)
	if containerErr != nil {
		return "", fmt.Errorf("%w\n%w\n%s", err, containerErr, howToGetOne)
	}
	return dsn, nil
})

// template is what the servers of this binary are copies of, with a migrated database. It is removed when this process
// ends.
var template = sync.OnceValues(func() (*pgserver.Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return pgserver.Prepare(ctx, pgserver.Options{Settings: serverSettings}, func(server *pgserver.Server) error {
		conn, err := pgconn.Connect(ctx, server.DSN("postgres"))
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		if err := conn.Exec(ctx, "CREATE DATABASE "+migrated+" TEMPLATE template0 ENCODING 'UTF8'").Close(); err != nil {
			return err
		}
		return migrations.Up(ctx, server.DSN(migrated), slog.New(slog.DiscardHandler), migrations.Walpost, migrations.Lessons)
	})
})

// migrated is the database that New copies where the shared server has it, which takes a fraction of the time of the
// migrations. On does not: in copies the tables of all databases of a server have the same oids.
const migrated = "walpost_test_migrated"

func startCopy(ctx context.Context, settings map[string]string) (*pgserver.Server, error) {
	template, err := template()
	if err != nil {
		return nil, err
	}
	return pgserver.Start(ctx, pgserver.Options{Template: template, Settings: settings})
}

// usable tells now, once, what would otherwise fail in every test in its own way.
func usable(ctx context.Context, dsn string) error {
	pool, err := postgres.Open(ctx, dsn, "walpost/testdb")
	if err != nil {
		return fmt.Errorf("WALPOST_TEST_DATABASE_URL: %w", err)
	}
	defer pool.Close()
	var level string
	if err := pool.QueryRow(ctx, "SHOW wal_level").Scan(&level); err != nil {
		return fmt.Errorf("WALPOST_TEST_DATABASE_URL: %w", err)
	}
	if level != "logical" {
		return fmt.Errorf("WALPOST_TEST_DATABASE_URL: wal_level is %s: set it to logical and restart that server", level)
	}
	return nil
}

// startContainer starts a Postgres container and returns its admin connection string and what removes
// it again. Who does not remove it leaves it to testcontainers' reaper, which does so soon after this
// process has ended.
func startContainer(ctx context.Context) (dsn string, remove func() error, err error) {
	// testcontainers panics, instead of returning an error, where it finds no Docker at all.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("start container: %v", p)
		}
	}()
	image := os.Getenv("WALPOST_TEST_PG_IMAGE")
	if image == "" {
		image = "postgres:17"
	}
	address := func(host string, port network.Port) string {
		return fmt.Sprintf("postgres://postgres:walpost@%s:%d/postgres?sslmode=disable", host, port.Num())
	}
	command := []string{"postgres"}
	for _, name := range slices.Sorted(maps.Keys(serverSettings)) {
		command = append(command, "-c", name+"="+serverSettings[name])
	}
	container, err := testcontainers.Run(ctx, image,
		testcontainers.WithEnv(map[string]string{"POSTGRES_PASSWORD": "walpost"}),
		testcontainers.WithExposedPorts("5432/tcp"),
		testcontainers.WithCmd(command...),
		// By SQL over TCP: the log says "ready" once too often, while the image sets itself up.
		testcontainers.WithWaitStrategyAndDeadline(time.Minute, wait.ForSQL("5432/tcp", "pgx", address)),
	)
	remove = func() error { return testcontainers.TerminateContainer(container) }
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("start container of %s: %w", image, err), remove())
	}
	host, err := container.Host(ctx)
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("container of %s: %w", image, err), remove())
	}
	port, err := container.MappedPort(ctx, "5432/tcp")
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("container of %s: %w", image, err), remove())
	}
	return address(host, port), remove, nil
}

// withDatabase returns dsn, a URL or key=value pairs, with another database.
func withDatabase(dsn, database string) (string, error) {
	if _, err := pgconn.ParseConfig(dsn); err != nil {
		return "", postgres.Mask(err, dsn)
	}
	if !strings.Contains(dsn, "://") {
		return dsn + " dbname=" + database, nil // the last one counts
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", errors.New("WALPOST_TEST_DATABASE_URL: no URL that tests can change the database of")
	}
	u.Path = "/" + database
	return u.String(), nil
}

// withParam returns dsn, a URL or key=value pairs, with a setting of the session.
func withParam(dsn, name, value string) (string, error) {
	if !strings.Contains(dsn, "://") {
		return dsn + " " + name + "=" + value, nil
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", errors.New("WALPOST_TEST_DATABASE_URL: no URL that tests can add a setting to")
	}
	query := u.Query()
	query.Set(name, value)
	u.RawQuery = query.Encode()
	return u.String(), nil
}
