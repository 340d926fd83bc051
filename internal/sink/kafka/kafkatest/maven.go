package kafkatest

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
)

// Dependency is an artifact of Maven.
type Dependency struct {
	Group    string `xml:"groupId"`
	Artifact string `xml:"artifactId"`
	Version  string `xml:"version"`
}

// Jars returns a folder with the classes of the artifacts and of what they need. Maven fills it once; name says what is in
// it, with the version.
func Jars(t T, name string, artifacts ...Dependency) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	folder := filepath.Join(cache, "walpost", name)
	if _, err := exec.LookPath("java"); err != nil {
		t.Fatal("it needs Java 17 or newer: apt-get install default-jdk-headless maven")
	}
	if _, err := os.Stat(filepath.Join(folder, artifacts[0].Artifact+"-"+artifacts[0].Version+".jar")); err == nil {
		return folder
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		t.Fatalf("the jars of %s come with Maven: apt-get install maven", name)
	}
	work := t.TempDir()
	pom, err := xml.Marshal(project{
		Xmlns: "http://maven.apache.org/POM/4.0.0", Model: "4.0.0", Group: "walpost", Artifact: name, Version: "1", Dependencies: artifacts,
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(work, "pom.xml"), pom, 0o600)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(folder), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	mvn := exec.Command("mvn", "-q", "-B", "-f", work, "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(work, "lib")) //nolint:gosec // the folder is ours
	if output, err := mvn.CombinedOutput(); err != nil {
		t.Fatalf("fetch %s: %v\n%s", name, err, output)
	}
	// Renamed whole, so that a fetch that breaks off, or a second one at the same time, leaves no half of it.
	if err := os.Rename(filepath.Join(work, "lib"), folder); err != nil {
		if output, copied := exec.Command("cp", "-rT", filepath.Join(work, "lib"), folder).CombinedOutput(); copied != nil { //nolint:gosec // the folders are ours
			t.Fatalf("keep %s: %v, %v\n%s", name, err, copied, output)
		}
	}
	return folder
}

type project struct {
	XMLName      xml.Name     `xml:"project"`
	Xmlns        string       `xml:"xmlns,attr"`
	Model        string       `xml:"modelVersion"`
	Group        string       `xml:"groupId"`
	Artifact     string       `xml:"artifactId"`
	Version      string       `xml:"version"`
	Dependencies []Dependency `xml:"dependencies>dependency"`
}
