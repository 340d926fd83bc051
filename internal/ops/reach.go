package ops

import (
	"strings"

	"github.com/backendstart/walpost/internal/httpserver"
)

// reach is who can connect to the listener.
type reach int

const (
	onLoopback reach = iota
	onNetwork
	onSocket
)

func reachOf(listen string) reach {
	switch {
	case strings.HasPrefix(listen, "unix:"):
		return onSocket
	case httpserver.IsLoopback(listen):
		return onLoopback
	}
	return onNetwork
}
