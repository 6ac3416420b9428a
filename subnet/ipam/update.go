package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// pollLock is how often a taken lock is tried again: both locks are held for milliseconds, and a blocking call could
// not be given up when the runtime gives up.
const pollLock = 5 * time.Millisecond

// Tx is a Store under host-local's own lock: no address is handed out or given back while it lives.
type Tx struct {
	store Store
}

// Update runs f under the lock that host-local takes (flock on the file "lock"), making the folder if need be.
func (s Store) Update(ctx context.Context, f func(Tx) error) error {
	path := filepath.Join(s.Dir, "lock")
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return fmt.Errorf("make host-local's folder: %w", subnet.Cure(path, err))
	}
	lock, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o750)
	if err != nil {
		return fmt.Errorf("open host-local's lock: %w", subnet.Cure(path, err))
	}
	defer func() { _ = lock.Close() }() // closing gives the lock back
	err = poll(ctx, func() error { return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) })
	if err != nil {
		return fmt.Errorf("take host-local's lock: %w", err)
	}
	return f(Tx{s})
}

// List is Store.List.
func (t Tx) List() ([]Reservation, error) { return t.store.List() }

// Get is Store.Get.
func (t Tx) Get(addr netip.Addr) (Reservation, bool) { return t.store.Get(addr) }

// Free gives an address back. One that is not reserved is fine.
func (t Tx) Free(addr netip.Addr) error {
	if err := os.Remove(t.store.path(addr)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("free %s: %w", addr, subnet.Cure(t.store.path(addr), err))
	}
	return nil
}

// Reserve writes a reservation as host-local does; it is false when the address has one already. The file appears
// whole or not at all, because it is made aside and then linked.
func (t Tx) Reserve(addr netip.Addr, o Owner) (bool, error) {
	if !o.Valid() {
		return false, fmt.Errorf("reserve %s: %q is no owner", addr, o)
	}
	content := o.ContainerID + "\r\n" + o.IfName
	aside := filepath.Join(t.store.Dir, ".reserve.tmp") // the lock makes one name enough
	defer func() { _ = os.Remove(aside) }()
	if err := os.WriteFile(aside, []byte(content), 0o600); err != nil {
		return false, fmt.Errorf("reserve %s: %w", addr, subnet.Cure(aside, err))
	}
	switch err := os.Link(aside, t.store.path(addr)); {
	case errors.Is(err, fs.ErrExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reserve %s: %w", addr, err)
	}
	return true, nil
}

// poll calls try until it gets through, fails for good, or ctx ends.
func poll(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil || !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EACCES) && !errors.Is(err, syscall.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollLock):
		}
	}
}
