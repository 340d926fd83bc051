package printable

import (
	"strconv"
	"strings"
)

// Count is a number of things, with the verb where one is given: "1 event is", "2 events are", "3 deliveries".
func Count[N int | int64](n N, thing string, verb ...string) string {
	if stem, found := strings.CutSuffix(thing, "ry"); n != 1 && found {
		thing = stem + "rie"
	}
	text := strconv.FormatInt(int64(n), 10) + " " + thing
	if n != 1 {
		text += "s"
	}
	for _, v := range verb {
		if n != 1 {
			v = plurals[v]
		}
		text += " " + v
	}
	return text
}

// plurals are the forms of the verbs that Count knows.
var plurals = map[string]string{"is": "are", "has": "have", "was": "were", "waits": "wait"}
