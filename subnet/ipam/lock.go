package ipam

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/weft-cni/weft/subnet"
)

// The locks of attachments are ranges of one file: byte 0 stands for all attachments together, one byte far behind it
// for each. Ranges leave no lock files to clean up, and as they belong to the open file, not to the process (open file
// description locks, fcntl(2)), a delegate that inherits the file keeps the lock when the plugin itself is killed: the
// DEL that follows still waits for the ADD that is under way.
const (
	lockName  = ".lock" // no container ID starts with a dot
	setLock   = 37      // F_OFD_SETLK, missing in syscall
	probeLock = 36      // F_OFD_GETLK
	allByte   = 0
	firstByte = 1 << 32
)

// Lock is held until Close, or until the last process that inherited File ends.
type Lock struct {
	f *os.File
}

// File is for the delegate to inherit.
func (l *Lock) File() *os.File { return l.f }

// Close gives the lock back, unless a delegate still has the file.
func (l *Lock) Close() { _ = l.f.Close() }

// LockForAdd keeps others off one attachment, and LockAll off everything, while it is made.
func (r Records) LockForAdd(ctx context.Context, o Owner) (*Lock, error) {
	return r.lock(ctx, rangeLock{allByte, syscall.F_RDLCK}, rangeLock{byteOf(o), syscall.F_WRLCK})
}

// LockOne keeps others off one attachment.
func (r Records) LockOne(ctx context.Context, o Owner) (*Lock, error) {
	return r.lock(ctx, rangeLock{byteOf(o), syscall.F_WRLCK})
}

// LockAll waits until no attachment is being made, and holds off those that would begin.
func (r Records) LockAll(ctx context.Context) (*Lock, error) {
	return r.lock(ctx, rangeLock{allByte, syscall.F_WRLCK})
}

// Busy reports whether somebody works on the attachment just now.
func (r Records) Busy(o Owner) bool {
	f, err := os.Open(filepath.Join(r.Dir, lockName))
	if err != nil {
		return false // nobody ever took a lock here
	}
	defer func() { _ = f.Close() }()
	l := rangeLock{byteOf(o), syscall.F_RDLCK}.flock()
	if err := syscall.FcntlFlock(f.Fd(), probeLock, &l); err != nil {
		return true // cannot tell
	}
	return l.Type != syscall.F_UNLCK
}

// BusyName is Busy for whomever a record of that name may belong to: the name alone does not tell where the container's
// ID ends.
func (r Records) BusyName(name string) bool {
	if r.Busy(Owner{name, "eth0"}) {
		return true
	}
	for i := range name {
		if o := (Owner{name[:i], name[i+1:]}); name[i] == '-' && o.IfName != "" && o.Valid() && r.Busy(o) {
			return true
		}
	}
	return false
}

type rangeLock struct {
	at   int64
	kind int16
}

func (l rangeLock) flock() syscall.Flock_t {
	return syscall.Flock_t{Type: l.kind, Whence: io.SeekStart, Start: l.at, Len: 1}
}

func (r Records) lock(ctx context.Context, ranges ...rangeLock) (*Lock, error) {
	path := filepath.Join(r.Dir, lockName)
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of records: %w", subnet.Cure(path, err))
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of attachments: %w", subnet.Cure(path, err))
	}
	for _, l := range ranges {
		flock := l.flock()
		if err := poll(ctx, func() error { return syscall.FcntlFlock(f.Fd(), setLock, &flock) }); err != nil {
			return nil, errors.Join(fmt.Errorf("take the lock of the attachment: %w", err), f.Close())
		}
	}
	return &Lock{f}, nil
}

func byteOf(o Owner) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(o.String())) // never fails
	return firstByte + int64(h.Sum64()>>2)
}
