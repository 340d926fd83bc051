package pgserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Standby makes a streaming standby of the server, which goes down cleanly for as long as its cluster is
// copied: that needs no client programs, which not every package of server binaries has. The standby has the
// primary's roles and password, and none of its slots. Settings must be those of the primary where a standby
// may not have less (max_connections and the like); Bin and InitArgs are the primary's. The caller stops
// both.
func (s *Server) Standby(ctx context.Context, options Options) (*Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.endLocked(ctx, syscall.SIGINT); err != nil {
		return nil, err
	}
	options.Bin, options.primary = s.bin, s
	settings := map[string]string{
		// Slots are copied only by a standby that knows which database to ask. (PostgreSQL manual, "Replication Slot
		// Synchronization")
		"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=postgres password=%s dbname=postgres application_name=standby", s.port, s.password),
	}
	maps.Copy(settings, options.Settings)
	options.Settings = settings
	standby, err := Start(ctx, options)
	if again := s.startLocked(ctx); again != nil {
		if standby != nil {
			again = errors.Join(again, standby.Stop(context.WithoutCancel(ctx)))
		}
		return nil, errors.Join(err, again)
	}
	return standby, err
}

// copyFrom takes over the cluster of a server that is down, with its password.
func (s *Server) copyFrom(ctx context.Context, other *Server) error {
	s.password = other.password
	if out, err := exec.CommandContext(ctx, "cp", "-Rp", other.data(), s.data()).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the cluster in %s: %w: %s", other.data(), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// becomeStandby takes over the cluster of a primary that is down. Slots stay behind: pg_basebackup leaves them out, too.
func (s *Server) becomeStandby(ctx context.Context, primary *Server) error {
	if err := s.copyFrom(ctx, primary); err != nil {
		return err
	}
	slots, err := filepath.Glob(filepath.Join(s.data(), "pg_replslot", "*"))
	if err != nil {
		return fmt.Errorf("copy the cluster in %s: %w", primary.data(), err)
	}
	for _, slot := range slots {
		if err := os.RemoveAll(slot); err != nil {
			return fmt.Errorf("copy the cluster in %s: %w", primary.data(), err)
		}
	}
	return s.writeFile(filepath.Join(s.data(), "standby.signal"), "")
}
