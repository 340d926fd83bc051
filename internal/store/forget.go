package store

import "github.com/backendstart/walpost/internal/advice"

// ForgetSlot is the statement by which a person removes a slot that is not used any more: the slot, and that it marks
// tables. What its subscribers are owed stays.
func ForgetSlot(slot string) advice.Statement { return advice.ForgetSlot(slot, "walpost.slots") }

// ForgetSlotAndPositions is the statement by which a person lets a slot begin at now, without a repair.
func ForgetSlotAndPositions(slot string) advice.Statement {
	return advice.ForgetSlot(slot, "walpost.slots", "walpost.subscribers")
}
