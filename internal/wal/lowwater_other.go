//go:build !linux

package wal

import "net"

// setLowWater exists on Linux only; elsewhere reading only costs more.
func setLowWater(net.Conn, int) {}
