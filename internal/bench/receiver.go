package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// taken is the answer to every request.
const taken = "HTTP/1.1 204 No Content\r\n\r\n"

// Receive listens on this machine, says on out where, and takes HTTP/1.1 requests until ctx ends.
//
// It reads what tells where a request ends and nothing else, because it is neither party: what a server does
// with the headers costs the same two cores as the client that is measured, and more for the client that sends
// more of them.
func Receive(ctx context.Context, out io.Writer) error {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for webhooks: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	if _, err := fmt.Fprintf(out, "receiving at http://%s/\n", listener.Addr()); err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listen for webhooks: %w", err)
		}
		go func() { // ends with its client, or with the process
			defer conn.Close()
			_ = answer(conn) // a broken request is the client's to tell
		}()
	}
}

// answer takes requests until the client closes the connection.
func answer(conn io.ReadWriter) error {
	reader := bufio.NewReader(conn)
	for {
		length, err := readHead(reader)
		if err != nil {
			return err
		}
		if _, err := reader.Discard(length); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, taken); err != nil {
			return err
		}
	}
}

// readHead reads up to the body and returns the body's length. A body without one is none of our clients'.
func readHead(reader *bufio.Reader) (length int, err error) {
	length = -1
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(": "))
		if !bytes.EqualFold(name, []byte("Content-Length")) {
			continue
		}
		if length, err = strconv.Atoi(string(value)); err != nil {
			return 0, fmt.Errorf("content length: %w", err)
		}
	}
	if length < 0 {
		return 0, errors.New("a request without a content length")
	}
	return length, nil
}
