package doctor

import "context"

// A check looks at one thing. What it returns is what it has to say; nothing means that all is fine, and an
// error that it cannot tell.
type check struct {
	id   string
	fine string
	// dear checks cost more than a look into the catalogue.
	dear bool
	look func(context.Context, *exam) ([]Finding, error)
}

// checks in the order in which they are told: what comes first may be the cause of what comes later.
var checks = []check{
	{id: "version", fine: "the server's version is one that walpost is tested with", look: checkVersion},
	{id: "primary", fine: "the server is a primary", look: checkPrimary},
	{id: "schema", fine: "the tables of walpost are those of this version", look: checkSchema},
	{id: "sequences", fine: "the sequences of walpost's tables stand behind no number that is taken", look: checkSequences},
	{id: "rights", fine: "the role has every right that the relay needs", dear: true, look: checkRights},
	{id: "row-security", fine: "no policy hides rows from the relay", look: checkRowSecurity},
	{id: "foreign-code", fine: "no code of another role runs when rows are read, marked or deleted", look: checkForeignCode},
	{id: "messages-open", fine: "no source of logical messages is open to every role", look: checkMessages},
	{id: "replication-connection", fine: "a replication connection can be opened, and leads to the same server", dear: true, look: checkReplicationConnection},
	{id: "clock", fine: "the clocks of server and relay agree", look: checkClock},

	{id: "wal-level", fine: "wal_level is logical", look: checkWALLevel},
	{id: "free-slots", fine: "there is room for the slot", look: checkFreeSlots},
	{id: "free-senders", fine: "there is room for a WAL sender", look: checkFreeSenders},
	{id: "wal-keep-size", fine: "max_slot_wal_keep_size bounds what a slot can keep, and lasts for an outage", look: checkWALKeepSize},
	{id: "wal-budget", fine: "debt lets go of WAL before the server takes it", look: checkWALBudget},
	{id: "idle-slot-timeout", fine: "no slot is taken away for being idle", look: checkIdleSlotTimeout},
	{id: "commit-timestamps", fine: "commit times are recorded", look: checkCommitTimestamps},
	{id: "track-activities", fine: "sessions show what they do", look: checkTrackActivities},
	{id: "advisory-locks", fine: "no other role is at the advisory locks of the relay", look: checkAdvisoryLocks},
	{id: "handler-timeout", fine: "a stop, and debt, wait as long as a handler may take", look: checkHandlerTimeout},

	{id: "source-table", fine: "the tables of the sources are understood", look: checkSourceTables},
	{id: "source-repair", fine: "every source can be repaired from its table", look: checkSourceRepair},
	{id: "event-ids", fine: "no receiver gets ids that can come again", look: checkEventIDs},
	{id: "replica-identity", fine: "rows can be marked, whatever else is published", look: checkReplicaIdentity},
	{id: "publication", fine: "the publication is there", look: checkPublication},
	{id: "publication-tables", fine: "the publication has exactly the tables of the sources", look: checkPublicationTables},
	{id: "publication-operations", fine: "only inserts are published", look: checkPublicationOperations},
	{id: "publication-root", fine: "rows of partitions come under the name of their root", look: checkPublicationRoot},
	{id: "publication-filter", fine: "no row or column is left out of the publication", look: checkPublicationFilter},
	{id: "publication-changed", fine: "what is published is what the slot was made for", look: checkPublicationChanged},

	{id: "slot", fine: "the slot can be used", look: checkSlot},
	{id: "slot-reader", fine: "nobody but walpost reads the slot", look: checkSlotReader},
	{id: "slot-moved", fine: "the slot stands where walpost left it", look: checkSlotMoved},
	{id: "same-server", fine: "the slot's record belongs to this server and timeline", look: checkSameServer},
	{id: "positions", fine: "what is recorded of positions can be true", look: checkPositions},
	{id: "slot-danger", fine: "the slot is far from being lost", look: checkSlotDanger},
	{id: "old-transaction", fine: "no transaction has been open for long", look: checkOldTransactions},
	{id: "other-slots", fine: "no other slot that nobody reads keeps WAL", look: checkOtherSlots},
	{id: "catalog-xmin", fine: "no slot keeps old rows from being cleaned up", look: checkCatalogXmin},

	{id: "failover-slot", fine: "the slot is one that standbys can take over", look: checkFailoverSlot},
	{id: "standby-slots", fine: "the stream waits for no standby that is away", look: checkStandbySlots},
	{id: "standby-sync", fine: "the standby has the slot", dear: true, look: checkStandbySync},

	{id: "table-bloat", fine: "the tables of the queue are clean", look: checkTableBloat},
	{id: "oldest-unpublished", fine: "no row has waited for long", dear: true, look: checkOldestUnpublished},
}

// connection is the check that comes before all others, made by examine.
const connection = "connection"

// Checks are the ids of all checks.
func Checks() []string {
	ids := []string{connection}
	for _, c := range checks {
		ids = append(ids, c.id)
	}
	return ids
}
