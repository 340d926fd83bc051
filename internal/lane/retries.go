package lane

import (
	"container/heap"
	"slices"
	"time"
)

// retries are the keys that fail, by when their next attempt is due; those that may be tried come first.
// The zero value is empty. All of it is guarded by Lane.mu.
type retries []*keyQueue

// first is the key that is due first, nil when there is none.
func (r retries) first() *keyQueue {
	if len(r) == 0 {
		return nil
	}
	return r[0]
}

// due is first, if its time has come.
func (r retries) due(now time.Time) *keyQueue {
	if q := r.first(); q != nil && !q.due.After(now) {
		return q
	}
	return nil
}

func (r *retries) add(q *keyQueue)    { heap.Push((*retryHeap)(r), q) }
func (r *retries) pop() *keyQueue     { return heap.Pop((*retryHeap)(r)).(*keyQueue) }
func (r *retries) remove(q *keyQueue) { heap.Remove((*retryHeap)(r), q.place) }
func (r *retries) sort()              { heap.Init((*retryHeap)(r)) }

// retryHeap is retries for package heap. All of it is guarded by Lane.mu.
type retryHeap []*keyQueue

func (h retryHeap) Len() int           { return len(h) }
func (h retryHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h retryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *retryHeap) Push(q any) {
	key := q.(*keyQueue)
	key.place = len(*h)
	*h = append(*h, key)
}

func (h *retryHeap) Pop() any {
	last := len(*h) - 1
	q := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return q
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }
