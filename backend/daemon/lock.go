package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
	"unicode"
)

// lockName is an abstract socket: it belongs to the network namespace and goes with its owner, however that ends.
const lockName = "@weft"

// maxIdentity bounds what is read of an owner's answer; ours has some 100 bytes.
const maxIdentity = 400

// acceptPause is how long the lock's owner waits after it could not take a caller.
const acceptPause = time.Second

// lock makes sure that one agent manages a network namespace. Whoever connects to it reads who the owner is.
type lock struct {
	identity string
	listener net.Listener
}

// acquire takes the lock, or says who has it.
func (l *lock) acquire(ctx context.Context) error {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "unix", lockName)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("another agent manages this node: %s; remove one of the two DaemonSets", owner(ctx))
	}
	if err != nil {
		return fmt.Errorf("take the node's lock: %w", err)
	}
	l.listener = listener
	return nil
}

// answer tells everyone who asks who we are, until ctx ends.
func (l *lock) answer(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = l.listener.Close() })
	defer stop()
	for {
		c, err := l.listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			pause(ctx, acceptPause) // out of file descriptors, for one: the lock itself stays ours
			continue
		}
		_ = c.SetDeadline(time.Now().Add(time.Second))
		_, _ = fmt.Fprintln(c, l.identity)
		_ = c.Close()
	}
}

// pause waits for d or for the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// owner asks the lock's holder who it is.
func owner(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", lockName)
	if err != nil {
		return "one that does not answer"
	}
	defer func() { _ = c.Close() }()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	answer, _ := io.ReadAll(io.LimitReader(c, maxIdentity)) // any process of the host's network can hold the name, and say what it likes
	line, _, whole := strings.Cut(string(answer), "\n")
	if !whole {
		return "one that does not answer"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, line)
}
