// Package relay is the corridor.
package relay
