package docs

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// compose is what the tests look at in docker-compose.yml.
type compose struct {
	Services map[string]struct {
		Image       string
		Ports       []string
		Environment map[string]string
		Healthcheck map[string]any
		DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	}
}

func readCompose(t *testing.T) compose {
	t.Helper()
	text, err := os.ReadFile("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var c compose
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Services) == 0 {
		t.Fatal("docker-compose.yml has no services")
	}
	return c
}

// The passwords in it are public.
func TestCompose_isReachableFromThisMachineAlone(t *testing.T) {
	for name, service := range readCompose(t).Services {
		for _, port := range service.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s publishes %s beyond 127.0.0.1", name, port)
			}
		}
	}
}

func TestCompose_startsWhatNeedsTheSchemaAfterTheSchema(t *testing.T) {
	services := readCompose(t).Services
	for _, name := range []string{"api", "relay"} {
		if got, want := services[name].DependsOn["grants"].Condition, "service_completed_successfully"; got != want {
			t.Errorf("%s waits for grants to be %q, want %q", name, got, want)
		}
		if services[name].Healthcheck == nil {
			t.Errorf("%s has no health check", name)
		}
	}
	if got, want := services["roles"].DependsOn["postgres"].Condition, "service_healthy"; got != want {
		t.Errorf("roles waits for postgres to be %q, want %q", got, want)
	}
}

func TestCompose_setsOnlyOptionsThatExist(t *testing.T) {
	known := literals(t, regexp.MustCompile(`env:"(WALPOST_[A-Z_]+)"`))
	for name, service := range readCompose(t).Services {
		for variable := range service.Environment {
			if strings.HasPrefix(variable, "WALPOST_") && !known[variable] {
				t.Errorf("%s sets %s, which is no option", name, variable)
			}
		}
	}
}

// literals finds what the pattern's group matches in the code under internal/, tests aside.
func literals(t *testing.T, pattern *regexp.Regexp) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir("..", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		source, err := os.ReadFile(file)
		for _, match := range pattern.FindAllStringSubmatch(string(source), -1) {
			found[match[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// S-01: inside a container the relay listens beyond loopback, and commands that ask it need a token.
func TestCompose_givesTheOpsAPIAToken(t *testing.T) {
	for name, service := range readCompose(t).Services {
		if listen := service.Environment["WALPOST_OPS_LISTEN"]; listen != "" && service.Environment["WALPOST_OPS_TOKEN"] == "" {
			t.Errorf("%s listens on %s and has no WALPOST_OPS_TOKEN: /progress, /v1 and walpost tail are refused", name, listen)
		}
	}
}

// S-11: each process has a role of its own, and none of them is the superuser or the owner of the tables.
func TestCompose_givesEachProcessItsRole(t *testing.T) {
	services := readCompose(t).Services
	for name, role := range map[string]string{"migrate": "walpost_migrate", "api": "walpost_api", "relay": "walpost_relay"} {
		if dsn := services[name].Environment["WALPOST_DATABASE_URL"]; !strings.HasPrefix(dsn, "postgres://"+role+":") {
			t.Errorf("%s connects with %q, want role %s", name, dsn, role)
		}
	}
	for name, after := range map[string]string{"migrate": "roles", "grants": "migrate"} {
		if got, want := services[name].DependsOn[after].Condition, "service_completed_successfully"; got != want {
			t.Errorf("%s waits for %s to be %q, want %q", name, after, got, want)
		}
	}
}

// S-12: what a script fetches and then runs has a hash in this repository, and anything else is not used.
func TestGetPostgres_usesNothingThatHasAnotherHash(t *testing.T) {
	folder, cache := t.TempDir(), t.TempDir()
	ran := filepath.Join(folder, "ran")
	// A registry that brings something else, which says that it ran as soon as it is looked at.
	for name, script := range map[string]string{
		"npm":  "#!/bin/sh\necho theirs >theirs.tgz\n",
		"tar":  "#!/bin/sh\ntouch " + ran + "\n",
		"node": "#!/bin/sh\ntouch " + ran + "\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.Command("sh", "../../scripts/get-postgres.sh", "17")
	command.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"), "WALPOST_POSTGRES_CACHE="+cache)
	output, err := command.CombinedOutput()
	if err == nil || !strings.Contains(string(output), "not used") {
		t.Errorf("the script ends with %v: %s", err, output)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("what it fetched has run")
	}
	if left, _ := os.ReadDir(filepath.Join(cache, "walpost", "postgres")); len(left) != 0 {
		t.Errorf("it leaves %v", left)
	}
}
