package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The numbers come from the original clients: murmur2 from BuiltInPartitioner.partitionForKey of kafka-clients 4.4.0, fnv1a
// from sarama.NewHashPartitioner of IBM/sarama 1.61.1 and kafka.Hash of segmentio/kafka-go 0.4.51, which agree, and crc32 from
// librdkafka 2.16.0 with partitioner=consistent, which wrote them to a broker.
func TestPartitioners_chooseAsTheOriginalClientsDo(t *testing.T) {
	partitions := []int{1, 3, 6, 12, 50}
	for _, test := range []struct {
		key                   string
		murmur2, fnv1a, crc32 []int
	}{
		{"a", []int{0, 1, 4, 4, 24}, []int{0, 0, 0, 0, 26}, []int{0, 0, 3, 3, 7}},
		{"payment-1", []int{0, 1, 1, 7, 15}, []int{0, 2, 5, 5, 17}, []int{0, 1, 4, 10, 8}},
		{"payment-2", []int{0, 1, 4, 4, 26}, []int{0, 0, 0, 6, 48}, []int{0, 1, 4, 4, 22}},
		{"org-42", []int{0, 0, 3, 9, 15}, []int{0, 2, 2, 2, 30}, []int{0, 2, 5, 5, 37}},
		{"6f0b5a36-6f0e-4d53-8a0a-0d5e7b1c9a11", []int{0, 2, 5, 11, 31}, []int{0, 0, 0, 6, 20}, []int{0, 0, 3, 9, 21}},
		{"schlüssel", []int{0, 0, 0, 0, 6}, []int{0, 0, 3, 9, 7}, []int{0, 0, 0, 6, 48}},
		{"42", []int{0, 1, 4, 4, 22}, []int{0, 2, 5, 5, 35}, []int{0, 2, 2, 8, 38}},
		{"7", []int{0, 0, 3, 3, 49}, []int{0, 0, 0, 6, 6}, []int{0, 0, 0, 6, 46}},
		{"0123456789abcdef0123456789abcdef", []int{0, 2, 5, 5, 33}, []int{0, 1, 1, 7, 21}, []int{0, 1, 4, 10, 8}},
		{"kafka", []int{0, 1, 4, 4, 30}, []int{0, 2, 5, 5, 45}, []int{0, 2, 5, 11, 49}},
		{"\x00x", []int{0, 0, 3, 9, 15}, []int{0, 2, 5, 5, 49}, []int{0, 1, 1, 1, 49}},
		{"user:1001", []int{0, 2, 5, 5, 13}, []int{0, 2, 2, 2, 36}, []int{0, 2, 5, 5, 3}},
	} {
		for name, want := range map[string][]int{"murmur2": test.murmur2, "fnv1a": test.fnv1a, "crc32": test.crc32} {
			for i, n := range partitions {
				if got := partitioners[name].ForTopic("t").Partition(&kgo.Record{Key: []byte(test.key)}, n); got != want[i] {
					t.Errorf("%s of %q among %d: %d, want %d", name, test.key, n, got, want[i])
				}
			}
		}
	}
}
