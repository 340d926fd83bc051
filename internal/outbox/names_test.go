package outbox

import (
	"os"
	"strings"
	"testing"
)

// Names that are found without a word of the configuration stand in its page: a table whose key is called "key" was taken
// for one without a key, and no page said which names count.
func TestWellKnownNames_standInTheDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []role{idRole, typeRole, versionRole, aggregateTypeRole, aggregateIDRole, keyRole, topicRole, revisionRole,
		payloadRole, headersRole, timeRole, orderRole, publishedRole} {
		if want := "| `" + r.option + "` | `" + strings.Join(r.names, "`, `") + "`"; !strings.Contains(string(page), want) {
			t.Errorf("docs/configuration.md lacks %s", want)
		}
	}
}
