package doctor

import (
	"context"
	"fmt"

	"github.com/backendstart/walpost/internal/store"
)

// What is not there is neither fine nor a problem: each of these says what a check looks for in vain.

func aSchema(ctx context.Context, c *checker) (string, error) {
	there, err := store.HasSlots(ctx, c.tx)
	if err != nil || there {
		return "", err
	}
	return "the database has no tables of walpost", nil
}

func aTable(ctx context.Context, c *checker) (string, error) {
	tables, err := c.tables(ctx)
	if err != nil || len(tables) > 0 {
		return "", err
	}
	return "there is no table of a source", nil
}

// aRoute is a table of a source, and a subscriber.
func aRoute(ctx context.Context, c *checker) (string, error) {
	missing, err := aTable(ctx, c)
	if err != nil || missing != "" {
		return missing, err
	}
	return aSubscriber(ctx, c)
}

func messages(_ context.Context, c *checker) (string, error) {
	for _, source := range c.Sources {
		if source.Messages != "" {
			return "", nil
		}
	}
	return "no source is made of messages", nil
}

func aSubscriber(_ context.Context, c *checker) (string, error) {
	if len(c.Subscribers) > 0 {
		return "", nil
	}
	return "there is no subscriber", nil
}

func aPublication(ctx context.Context, c *checker) (string, error) {
	p, err := c.publication(ctx)
	if err != nil || p != nil {
		return "", err
	}
	return fmt.Sprintf("there is no publication %q", c.Publication), nil
}

func aFilter(ctx context.Context, c *checker) (string, error) {
	if c.version < 150000 {
		return "before Postgres 15 a publication leaves nothing out", nil
	}
	return aPublication(ctx, c)
}

func aSlot(ctx context.Context, c *checker) (string, error) {
	slot, err := c.slot(ctx)
	if err != nil || slot != nil {
		return "", err
	}
	return fmt.Sprintf("there is no slot %q of this database", c.Slot), nil
}

// aRecord is a slot that a relay has read.
func aRecord(ctx context.Context, c *checker) (string, error) {
	missing, err := aSlot(ctx, c)
	if err != nil || missing != "" {
		return missing, err
	}
	known, err := c.record(ctx)
	if err != nil || known != nil && known.State == store.SlotReady {
		return "", err
	}
	return fmt.Sprintf("no relay has read slot %q yet", c.Slot), nil
}

func aSlot17(ctx context.Context, c *checker) (string, error) {
	if c.version < failoverSlots {
		return beforeFailoverSlots, nil
	}
	return aSlot(ctx, c)
}

func version17(_ context.Context, c *checker) (string, error) {
	if c.version < 170000 {
		return "before Postgres 17 there is no synchronized_standby_slots", nil
	}
	return "", nil
}

func version18(_ context.Context, c *checker) (string, error) {
	if c.version < 180000 {
		return "before Postgres 18 there is no idle_replication_slot_timeout", nil
	}
	return "", nil
}
