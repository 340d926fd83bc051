package wal

import (
	"net"
	"syscall"
)

// setLowWater lets the kernel say that a TCP connection can be read only when so many bytes are there, or
// its end. Without it a process that sleeps is still woken for each packet: the runtime watches all
// sockets at once. Where it cannot be set, reading only costs more. (socket(7), SO_RCVLOWAT)
func setLowWater(conn net.Conn, bytes int) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, bytes)
	})
}
