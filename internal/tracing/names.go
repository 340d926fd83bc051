package tracing

import (
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// The conventions for messaging are still in development, so what they call things stands here alone.
// (OpenTelemetry, "Semantic conventions for messaging spans")
const (
	schemaURL = semconv.SchemaURL

	messageID      = semconv.MessagingMessageIDKey
	conversationID = semconv.MessagingMessageConversationIDKey
	messageCount   = semconv.MessagingBatchMessageCountKey
	destination    = semconv.MessagingDestinationNameKey             // the source
	subscription   = semconv.MessagingDestinationSubscriptionNameKey // the subscriber

	// What the conventions have no name for.
	slotName     = attribute.Key("walpost.slot")
	eventType    = attribute.Key("walpost.event.type")
	attempt      = attribute.Key("walpost.attempt")
	term         = attribute.Key("walpost.term")
	owed         = attribute.Key("walpost.owed")
	replay       = attribute.Key("walpost.replay")
	failedCount  = attribute.Key("walpost.failed")
	confirmedLSN = attribute.Key("walpost.confirmed_lsn")
	repairKind   = attribute.Key("walpost.repair.kind")
	repairReason = attribute.Key("walpost.repair.reason")
	repairRows   = attribute.Key("walpost.repair.rows")
)

var (
	system         = semconv.MessagingSystemKey.String("walpost")
	deliverCall    = semconv.MessagingOperationNameKey.String("deliver")
	recordCall     = semconv.MessagingOperationNameKey.String("record")
	confirmCall    = semconv.MessagingOperationNameKey.String("confirm")
	processes      = semconv.MessagingOperationTypeProcess
	settles        = semconv.MessagingOperationTypeSettle
	serviceName    = semconv.ServiceName("walpost")
	serviceVersion = semconv.ServiceVersion
)
