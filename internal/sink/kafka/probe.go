package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/backendstart/walpost/internal/subscriber"
)

// Probe asks the brokers whether they would take records: reachable, the login, and of a topic that the configuration names
// that it is there, may be written, and is kept by more than one broker. It sends no record and makes no topic.
func (k *Kafka) Probe(ctx context.Context) error {
	client, err := k.newClient(kgo.RequestRetries(1))
	if err != nil {
		return err
	}
	defer client.Close()
	topic, fixed := k.topic.Fixed()
	group := ""
	if k.ExactlyOnce {
		group = k.transactionalID()
	}
	return k.masked(probe(ctx, client, topic, fixed, group))
}

// probe asks for the topic, where it is fixed, and for the group whose offsets are read back with exactly_once, "" without.
func probe(ctx context.Context, client *kgo.Client, topic string, fixed bool, group string) error {
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{}
	if fixed {
		asked := kmsg.NewMetadataRequestTopic()
		asked.Topic = &topic
		request.Topics = append(request.Topics, asked)
		request.IncludeTopicAuthorizedOperations = true
	}
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("ask the brokers: %w", err)
	}
	if group != "" {
		_, err := kadm.NewClient(client).FetchOffsets(ctx, group)
		if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			return fmt.Errorf("offsets of group %s: %w", group, err)
		}
	}
	if !fixed {
		return nil // which topics there will be the events say
	}
	of := answer.Topics[0]
	switch err := kerr.ErrorForCode(of.ErrorCode); {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return unknownTopic(topic)
	case err != nil:
		return fmt.Errorf("topic %s: %w", topic, err)
	}
	const notAsked = -1 << 31 // by a broker older than 2.3
	if rights := of.AuthorizedOperations; rights != notAsked && !slices.Contains(kadm.DecodeACLOperations(rights), kmsg.ACLOperationWrite) {
		return fmt.Errorf("topic %s: no right to write", topic)
	} else if rights != notAsked && group != "" && !slices.Contains(kadm.DecodeACLOperations(rights), kmsg.ACLOperationRead) {
		return fmt.Errorf("topic %s: no right to read, which exactly_once needs", topic)
	}
	for _, partition := range of.Partitions {
		if partition.Leader < 0 {
			return fmt.Errorf("topic %s: partition %d has no leader", topic, partition.Partition)
		}
	}
	return durable(ctx, kadm.NewClient(client), topic, of.Partitions)
}

// durable tells when an acknowledged record can be lost with one broker: acks from all replicas means from those in sync,
// and that may be one.
func durable(ctx context.Context, admin *kadm.Client, topic string, partitions []kmsg.MetadataResponseTopicPartition) error {
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return nil //nolint:nilerr // to write needs no right to describe
	}
	config, err := configs.On(topic, nil)
	if err != nil || config.Err != nil {
		return nil //nolint:nilerr // the same
	}
	for _, c := range config.Configs {
		if n, err := strconv.Atoi(c.MaybeValue()); c.Key == "min.insync.replicas" && err == nil && n < 2 {
			replicas := 0
			if len(partitions) > 0 {
				replicas = len(partitions[0].Replicas)
			}
			return subscriber.Risk(fmt.Errorf("topic %s: min.insync.replicas is %d with %d replicas: a record that was acknowledged can be lost with one broker", topic, n, replicas))
		}
	}
	return nil
}
