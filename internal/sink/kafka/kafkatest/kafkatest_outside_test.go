//go:build outside

package kafkatest

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestOutside_aBrokerKeepsWhatItHadThroughARestart(t *testing.T) {
	b := Start(t)
	b.Topic(t, "t", 3)
	for _, key := range []string{"a", "b", "c"} {
		if err := b.client.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Key: []byte(key)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	b.Down(t)
	b.Up(t)
	if got := b.Records(t, "t"); len(got) != 3 {
		t.Errorf("%d records, want 3", len(got))
	}
}
