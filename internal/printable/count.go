package printable

import "strconv"

// Count is a number of things, with the verb where one is given: "1 event is", "2 events are".
func Count(n int64, thing string, verb ...string) string {
	text := strconv.FormatInt(n, 10) + " " + thing
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
var plurals = map[string]string{"is": "are", "has": "have", "was": "were"}
