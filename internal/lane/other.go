package lane

// Two rows with one identity are one event (docs/GUARANTEES.md, P4). While something of one of them is recorded, the other
// is neither sent nor recorded: the debt knows an event by its identity alone. That is no delivery, so the row of the other
// is not marked, and is counted and told.

// othersTold bounds the memory of types that were told: types come from data.
const othersTold = 100

// noteOtherLocked counts a delivery of which another row with the same identity is recorded, and tells the first of its
// type.
func (h *holdings) noteOtherLocked(it *item) {
	h.metrics.others.Inc()
	of := typeOf{it.ev.Source, it.ev.Type}
	if h.others[of] || len(h.others) >= othersTold {
		return
	}
	if h.others == nil {
		h.others = make(map[typeOf]bool)
	}
	h.others[of] = true
	h.log.Warn("rows of other events have the id and time of one that is recorded; they count as that event, are not sent and stay unpublished: make the ids unique",
		"source", of.source, "type", of.event, "event", it.ev.ID, "correlation_id", it.ev.CorrelationID(), "row", it.ev.Row)
}

// split parts those with these indexes, which are in order, from the rest.
func split[T any](all []T, indexes []int) (rest, chosen []T) {
	if len(indexes) == 0 {
		return all, nil
	}
	for i, one := range all {
		if len(indexes) > 0 && indexes[0] == i {
			chosen, indexes = append(chosen, one), indexes[1:]
		} else {
			rest = append(rest, one)
		}
	}
	return rest, chosen
}
