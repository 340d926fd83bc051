package check

import (
	"os"
	"slices"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// The file is read as docker compose reads it: against its schema, with its anchors and defaults.
func TestCompose_isReadByTheLibraryOfDockerCompose(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{"../../docker-compose.yml"}, cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"api", "grafana", "grants", "mail", "migrate", "postgres", "prometheus", "relay", "roles"}
	names := project.ServiceNames()
	slices.Sort(names)
	if !slices.Equal(names, want) {
		t.Errorf("services %v, want %v", names, want)
	}
	for name, service := range project.Services {
		for _, volume := range service.Volumes {
			if volume.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(volume.Source); err != nil {
				t.Errorf("%s mounts what is not there: %v", name, err)
			}
		}
		if service.Build != nil {
			if _, err := os.Stat(service.Build.Context + "/" + service.Build.Dockerfile); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if !service.ReadOnly || !slices.Contains(service.CapDrop, "ALL") || !slices.Contains(service.SecurityOpt, "no-new-privileges:true") {
				t.Errorf("%s can write to its root, or has rights that it does not need", name)
			}
		}
	}
}
