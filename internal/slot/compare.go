package slot

import (
	"slices"

	"github.com/backendstart/walpost/internal/store"
)

// Difference is how two fingerprints of one slot differ, source by source. Names are those of the later one.
type Difference struct {
	Changed    []string                // rows of them may be missing from the stream
	Added      []string                // new to the slot, or back in its configuration
	SecondPass []string                // a second pass over them is still to come
	Partitions []uint32                // have come, or come again, and may have brought rows that were never streamed
	Renamed    map[string]string       // the new names of sources by their old ones
	Former     []store.PublishedSource // have left the configuration, now or before
}

// Compare finds out how what is published now, of the sources of the configuration, differs from what was recorded. A
// source is known by its table or prefix, whatever its name or its place in the configuration.
func Compare(before, now store.Fingerprint) Difference {
	var d Difference
	publication := before.Publication != now.Publication
	current := make(map[int]bool) // indexes in before
	for _, source := range now.Sources {
		at := slices.IndexFunc(before.Sources, func(b store.PublishedSource) bool { return sameOrigin(b, source) })
		renamedTable := at < 0 && source.OID != 0 // a table that has another name now
		if renamedTable {
			at = slices.IndexFunc(before.Sources, func(b store.PublishedSource) bool { return b.OID == source.OID })
		}
		if at < 0 {
			d.Added = append(d.Added, source.Name)
			continue
		}
		known := before.Sources[at]
		current[at] = true
		// What is recorded of one that comes back under another name is its own, unless another source has had that name too.
		if known.Name != source.Name && (!known.Former || namedOnce(known.Name, before, now)) {
			if d.Renamed == nil {
				d.Renamed = make(map[string]string)
			}
			d.Renamed[known.Name] = source.Name
		}
		if known.Former {
			d.Added = append(d.Added, source.Name)
			continue
		}
		if known.SecondPass {
			d.SecondPass = append(d.SecondPass, source.Name)
		}
		switch {
		case source.Messages != "":
		case publication, renamedTable, known.OID != source.OID, !slices.Equal(known.Entries, source.Entries):
			d.Changed = append(d.Changed, source.Name)
		default:
			for _, leaf := range source.Leaves {
				if !slices.Contains(known.Leaves, leaf) {
					d.Partitions = append(d.Partitions, leaf.OID)
				}
			}
		}
	}
	for i, known := range before.Sources {
		if !current[i] {
			known.Former, known.SecondPass = true, false
			d.Former = append(d.Former, known)
		}
	}
	return d
}

// namedOnce says whether one source alone has the name in the earlier fingerprint, and none in the later one.
func namedOnce(name string, before, now store.Fingerprint) bool {
	has := func(s store.PublishedSource) bool { return s.Name == name }
	first := slices.IndexFunc(before.Sources, has)
	return first >= 0 && !slices.ContainsFunc(before.Sources[first+1:], has) && !slices.ContainsFunc(now.Sources, has)
}

// sameOrigin says whether two sources read the same table, or messages of the same prefix.
func sameOrigin(a, b store.PublishedSource) bool {
	return a.Schema == b.Schema && a.Table == b.Table && a.Messages == b.Messages
}

// Record is what to record after a comparison: what is published now, the sources over which a second pass is to come,
// and those that have left the configuration.
func (d Difference) Record(now store.Fingerprint, secondPass []string) store.Fingerprint {
	next := store.Fingerprint{Publication: now.Publication}
	for _, source := range now.Sources {
		source.SecondPass = slices.Contains(secondPass, source.Name)
		next.Sources = append(next.Sources, source)
	}
	next.Sources = append(next.Sources, d.Former...)
	return next
}
