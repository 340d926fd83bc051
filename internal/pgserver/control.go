package pgserver

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Stop shuts the server down (fast: sessions are ended, walsenders send what is left) and removes its
// folder. If it has not ended when ctx does, or after ten seconds, it is stopped at once and the error
// says so; the folder is removed all the same. A second Stop does nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	s.gone = true
	_ = s.signalAllLocked(syscall.SIGCONT) // an error means that nothing of it runs
	return errors.Join(s.endLocked(ctx, syscall.SIGINT), s.supervisor.end())
}

// Restart shuts the server down as Stop does, keeps the data, and starts it again on the same port.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.endLocked(ctx, syscall.SIGINT); err != nil {
		return err
	}
	return s.startLocked(ctx)
}

// Kill stops the server as a crash would (immediate shutdown): no checkpoint, no goodbye. The data is
// kept; StartAgain recovers it.
func (s *Server) Kill(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.signalAllLocked(syscall.SIGCONT) // an error means that nothing of it runs
	return s.endLocked(ctx, syscall.SIGQUIT)
}

// StartAgain starts a server that is down, on its old port, and returns when it answers.
func (s *Server) StartAgain(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.startLocked(ctx)
}

// Freeze suspends the postmaster and every process of the server: connections stay open and no one
// answers, as behind a cut network or on a machine that hangs. Thaw ends it.
func (s *Server) Freeze() error { return s.signalRunning(syscall.SIGSTOP) }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() error { return s.signalRunning(syscall.SIGCONT) }

// PID is the process id of the postmaster, 0 while the server is down.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.runningLocked() {
		return 0
	}
	return s.process.cmd.Process.Pid
}

// runningLocked reports whether the postmaster lives.
func (s *Server) runningLocked() bool {
	if s.process == nil {
		return false
	}
	select {
	case <-s.process.exited:
		return false
	default:
		return true
	}
}

// endLocked signals the postmaster and waits for it. What has not ended when ctx does, or after ten seconds,
// is stopped at once, which is an error.
func (s *Server) endLocked(ctx context.Context, signal syscall.Signal) error {
	if !s.runningLocked() {
		return nil
	}
	pid, exited := s.process.cmd.Process.Pid, s.process.exited
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s.process.cmd.Process.Signal(signal) // an error means that it has ended, and exited says so
	var late error
	select {
	case <-exited:
	case <-ctx.Done():
		late = fmt.Errorf("stop postgres (pid %d): still running after %w, stopped at once", pid, ctx.Err())
		s.process.cmd.Process.Signal(syscall.SIGQUIT)
		_ = s.signalAllLocked(syscall.SIGCONT) // a frozen child would outlive its postmaster
		select {
		case <-exited: // the postmaster kills its own children after five seconds
		case <-time.After(8 * time.Second):
			s.process.cmd.Process.Kill()
			<-exited
		}
	}
	s.log.Debug("postgres stopped", "pid", pid)
	return errors.Join(late, s.supervisor.watch(0))
}

func (s *Server) signalRunning(signal syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.runningLocked() {
		return fmt.Errorf("%v to postgres: it is down", signal)
	}
	return s.signalAllLocked(signal)
}

// signalAllLocked signals the postmaster first: once it is suspended it makes no further children.
func (s *Server) signalAllLocked(signal syscall.Signal) error {
	if !s.runningLocked() {
		return nil
	}
	pid := s.process.cmd.Process.Pid
	if err := syscall.Kill(pid, signal); err != nil {
		return fmt.Errorf("%v to postgres (pid %d): %w", signal, pid, err)
	}
	family, err := children(pid)
	if err != nil {
		return err
	}
	for _, child := range family {
		if err := syscall.Kill(child, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("%v to postgres (pid %d, child of %d): %w", signal, child, pid, err)
		}
	}
	return nil
}
