package kafkatest

import (
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Cluster is some brokers. Three are their own controllers; of fewer the first is.
type Cluster struct{ Brokers []*Broker }

// StartCluster starts so many brokers, which end with the test. settings are further lines of each server.properties.
func StartCluster(t T, n int, settings ...string) *Cluster {
	t.Helper()
	c := &Cluster{}
	for node := 1; node <= n; node++ {
		c.Brokers = append(c.Brokers, prepare(t, node, settings))
	}
	for _, b := range c.Brokers {
		b.all = c.Brokers
	}
	for _, b := range c.Brokers {
		b.format(t)
		b.start(t)
		b.connect(t)
	}
	for _, b := range c.Brokers {
		b.awaitAnswer(t)
	}
	return c
}

func (b *Broker) controllers() []*Broker {
	if len(b.all) < 3 {
		return b.all[:1]
	}
	return b.all
}

// Addresses are those of all brokers.
func (c *Cluster) Addresses() []string { return c.Brokers[0].seeds() }

// TopicOn makes a topic whose partitions are on the brokers that are named, the leader first. Brokers count from 1.
func (c *Cluster) TopicOn(t T, name string, partitions ...[]int32) {
	t.Helper()
	request := kmsg.NewPtrCreateTopicsRequest()
	request.TimeoutMillis = int32(patience / time.Millisecond)
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, -1, -1
	for number, replicas := range partitions {
		of := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		of.Partition, of.Replicas = int32(number), replicas
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, of)
	}
	request.Topics = append(request.Topics, topic)
	answer, err := request.RequestWith(t.Context(), c.Brokers[0].client)
	if err != nil || answer.Topics[0].ErrorCode != 0 {
		t.Fatalf("make topic %s: %v %v", name, err, answer)
	}
	c.Brokers[0].awaitTopic(t, name, len(partitions))
}

// MoveLeaders gives each partition of a topic to the next of its replicas.
func (c *Cluster) MoveLeaders(t T, topic string) {
	t.Helper()
	admin := c.Brokers[0].admin
	listed, err := admin.ListTopics(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	var moves kadm.AlterPartitionAssignmentsReq
	var all kadm.TopicsSet
	for _, p := range listed[topic].Partitions {
		moves.Assign(topic, p.Partition, append(slices.Clone(p.Replicas[1:]), p.Replicas[0]))
		all.Add(topic, p.Partition)
	}
	if _, err := admin.AlterPartitionAssignments(t.Context(), moves); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.ElectLeaders(t.Context(), kadm.ElectPreferredReplica, all); err != nil {
		t.Fatal(err)
	}
}

// AwaitInSync waits until all replicas of a topic follow their leaders.
func (c *Cluster) AwaitInSync(t T, topic string) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		listed, err := c.Brokers[0].admin.ListTopics(t.Context(), topic)
		state := fmt.Sprint(err)
		if err == nil {
			behind := 0
			for _, p := range listed[topic].Partitions {
				if p.Leader < 0 || len(p.ISR) < len(p.Replicas) {
					behind++
				}
			}
			if behind == 0 {
				return
			}
			state = fmt.Sprintf("%d partitions lack a replica", behind)
		}
		if time.Since(begun) > patience {
			t.Fatalf("topic %s: %s", topic, state)
		}
	}
}

// RestartInTurn kills each broker and starts it again when the others have taken over, and calls between after each.
func (c *Cluster) RestartInTurn(t T, topic string, between func()) {
	t.Helper()
	for _, b := range c.Brokers {
		b.Down(t)
		between()
		b.Up(t)
		c.AwaitInSync(t, topic)
	}
}
