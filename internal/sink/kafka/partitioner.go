package kafka

import (
	"hash/crc32"
	"hash/fnv"

	"github.com/twmb/franz-go/pkg/kgo"
)

// partitioners say which partition a key goes to. A team that changes its client keeps its order only if the new one
// chooses as the old one did:
//
//	murmur2   the Java client, Kafka Streams, franz-go
//	fnv1a     Sarama's default, and the balancer Hash of segmentio/kafka-go
//	crc32     librdkafka's "consistent" and "consistent_random", and ruby-kafka
var partitioners = map[string]kgo.Partitioner{
	"murmur2": kgo.StickyKeyPartitioner(nil),
	"fnv1a":   kgo.StickyKeyPartitioner(kgo.SaramaCompatHasher(fnv1a)),
	// The name is misleading: with crc32 it is librdkafka's, and no partitioner of Sarama.
	"crc32": kgo.StickyKeyPartitioner(kgo.SaramaHasher(crc32.ChecksumIEEE)),
}

func fnv1a(key []byte) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(key) // a hash takes everything
	return h.Sum32()
}

// codecs are how batches are compressed.
var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}
