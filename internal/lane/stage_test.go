package lane

import "testing"

func TestStage_goesOneWay(t *testing.T) {
	var s stage
	said := s.String()
	for _, step := range []func(){s.begin, func() { s.drain(false) }, s.end} {
		if s.handsOver() != (s == working || s == draining) {
			t.Errorf("%s hands over: %v", s, s.handsOver())
		}
		step()
		said += " " + s.String()
	}
	if want := "loading working draining ended"; said != want {
		t.Errorf("got %q, want %q", said, want)
	}
	s = working
	if s.drain(true); s != ended {
		t.Errorf("a lane that yields is %s, want ended", s)
	}
}
