package doctor

import "context"

// A check is about one subject. run returns the findings; no finding means that all is fine, and an error that
// the check could not be made.
type check struct {
	id   string
	fine string
	// needs says what has to be there for the check to say anything, "" if it is; nil needs nothing.
	needs func(context.Context, *checker) (missing string, err error)
	// costly checks cost more than a read of the catalogue.
	costly bool
	run    func(context.Context, *checker) ([]Finding, error)
}

// checks in the order in which they are made: what comes first may be the cause of what comes later.
var checks = []check{
	{id: "version", fine: "the server's version is one that walpost is tested with", run: checkVersion},
	{id: "primary", fine: "the server is a primary", run: checkPrimary},
	{id: "schema", fine: "the tables of walpost are those of this version", run: checkSchema},
	{id: "sequences", needs: aSchema, fine: "the sequences of walpost's tables stand behind no number that is taken", run: checkSequences},
	{id: "rights", fine: "the role has every right that the relay needs", costly: true, run: checkRights},
	{id: "row-security", needs: aTable, fine: "no policy hides rows from the relay", run: checkRowSecurity},
	{id: "foreign-code", needs: aTable, fine: "no code of another role runs when rows are read, marked or deleted", run: checkForeignCode},
	{id: "messages-open", needs: messages, fine: "no source of logical messages is open to every role", run: checkMessages},
	{id: "tls", fine: "the connections to other machines are encrypted and verified", run: checkTLS},
	{id: "replication-connection", fine: "a replication connection can be opened, and leads to the same server", costly: true, run: checkReplicationConnection},
	{id: "clock", fine: "the clocks of server and relay agree", run: checkClock},

	{id: "wal-level", fine: "wal_level is logical", run: checkWALLevel},
	{id: "free-slots", fine: "there is room for the slot", run: checkFreeSlots},
	{id: "free-senders", fine: "there is room for a WAL sender", run: checkFreeSenders},
	{id: "wal-keep-size", fine: "max_slot_wal_keep_size bounds what a slot can keep, and lasts for an outage", run: checkWALKeepSize},
	{id: "wal-budget", fine: "debt lets go of WAL before the server takes it", run: checkWALBudget},
	{id: "idle-slot-timeout", needs: version18, fine: "no slot is taken away for being idle", run: checkIdleSlotTimeout},
	{id: "commit-timestamps", fine: "commit times are recorded", run: checkCommitTimestamps},
	{id: "track-activities", fine: "sessions show what they do", run: checkTrackActivities},
	{id: "advisory-locks", needs: aSchema, fine: "no other role is at the advisory locks of the relay", run: checkAdvisoryLocks},
	{id: "handler-timeout", needs: aSubscriber, fine: "a stop, and debt, wait as long as a handler may take", run: checkHandlerTimeout},

	{id: "source-table", fine: "the tables of the sources are understood", run: checkSourceTables},
	{id: "source-repair", fine: "every source can be repaired from its table", run: checkSourceRepair},
	{id: "event-ids", needs: aTable, fine: "no receiver gets ids that can come again", run: checkEventIDs},
	{id: "replica-identity", needs: aTable, fine: "rows can be marked, whatever else is published", run: checkReplicaIdentity},
	{id: "publication", fine: "the publication is there", run: checkPublication},
	{id: "publication-tables", needs: aPublication, fine: "the publication has exactly the tables of the sources", run: checkPublicationTables},
	{id: "publication-operations", needs: aPublication, fine: "only inserts are published", run: checkPublicationOperations},
	{id: "publication-root", needs: aPublication, fine: "rows of partitions come under the name of their root", run: checkPublicationRoot},
	{id: "publication-filter", needs: aFilter, fine: "no row or column is left out of the publication", run: checkPublicationFilter},
	{id: "publication-changed", needs: aRecord, fine: "what is published is what the slot was made for", run: checkPublicationChanged},

	{id: "start", needs: aSchema, fine: "a relay can start", costly: true, run: checkStart},
	{id: "slot", fine: "the slot can be used", run: checkSlot},
	{id: "slot-reader", needs: aSlot, fine: "no other program reads the slot", run: checkSlotReader},
	{id: "slot-moved", needs: aRecord, fine: "the slot stands where walpost left it", run: checkSlotMoved},
	{id: "same-server", needs: aRecord, fine: "the slot's record belongs to this server and timeline", run: checkSameServer},
	{id: "positions", needs: aRecord, fine: "what is recorded of positions can be true", run: checkPositions},
	{id: "slot-danger", needs: aSlot, fine: "the slot is far from being lost", run: checkSlotDanger},
	{id: "old-transaction", fine: "no transaction that the role may look at has been open for long", run: checkOldTransactions},
	{id: "other-slots", fine: "no other slot keeps WAL without a reader", run: checkOtherSlots},
	{id: "catalog-xmin", fine: "no slot keeps old rows from being cleaned up", run: checkCatalogXmin},

	{id: "failover-slot", needs: aSlot17, fine: "the slot is one that standbys can take over", run: checkFailoverSlot},
	{id: "standby-slots", needs: version17, fine: "the stream waits for no standby that is away", run: checkStandbySlots},
	{id: "standby-sync", fine: "the standby has the slot", costly: true, run: checkStandbySync},

	{id: "destinations", needs: aProbe, fine: "the destinations that can be asked would take events", costly: true, run: checkDestinations},

	{id: "table-bloat", fine: "the tables of the queue are clean", run: checkTableBloat},
	{id: "event-types", needs: aRoute, fine: "each type of late has a subscriber, and each pattern of a subscriber a type", costly: true, run: checkEventTypes},
	{id: "owed-sources", needs: aSchema, fine: "nothing is owed of a source that is not in the configuration", costly: true, run: checkOwedSources},
	{id: "oldest-unpublished", needs: aTable, fine: "no row has waited for long", costly: true, run: checkOldestUnpublished},
}

// connection is the check that comes before all others, made by runChecks.
const connection = "connection"

// Checks are the ids of all checks.
func Checks() []string {
	ids := []string{connection}
	for _, c := range checks {
		ids = append(ids, c.id)
	}
	return ids
}
