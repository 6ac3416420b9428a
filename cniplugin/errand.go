package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet/ipam"
)

// errand is the address management of a delegate, run while the delegate starts and makes the pod's cable, which takes as
// long. What came of it waits in a pipe for the delegate to ask. Without it the stage would be one more program that runs
// another one after the other, and each costs a pod two milliseconds.
type errand struct {
	stage       stage
	conf        []byte // without the stage
	read, write int    // ends of the pipe
	reserved    []netip.Addr
}

// answer is what the stage reads.
type answer struct {
	Result []byte       `json:"result,omitempty"`
	Error  *types.Error `json:"error,omitempty"`
}

// newErrand completes the stage with the place where the answer will be.
func newErrand(s stage, conf []byte) (errand, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return errand{}, fmt.Errorf("make a pipe for the address management: %w", err)
	}
	// By its path, since a delegate need not hand descriptors on.
	s.Answer = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fds[0])
	e := errand{stage: s, conf: conf, read: fds[0], write: fds[1]}
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		e.close()
		return errand{}, errors.New("make a pipe for the address management: /proc shows other processes than ours")
	}
	return e, nil
}

// run does the errand. Whatever comes of it, the stage gets to know it.
func (e *errand) run(p plugin, args *skel.CmdArgs) {
	var said answer
	var err error
	if said.Result, err = p.manage(args, e.stage, e.conf, false); err != nil && !errors.As(err, &said.Error) {
		said.Error = types.NewError(types.ErrInternal, err.Error(), "")
	}
	e.reserved = ipam.ResultAddrs(said.Result)
	if raw, err := json.Marshal(said); err == nil {
		_, _ = unix.Write(e.write, raw) // a stage that is not told all of it fails
	}
	e.hangUp()
}

// hangUp ends what the stage reads.
func (e *errand) hangUp() {
	_ = unix.Close(e.write) // a pipe
	e.write = -1
}

// close lets nobody wait who still does.
func (e *errand) close() {
	for _, fd := range []int{e.read, e.write} {
		if fd >= 0 {
			_ = unix.Close(fd) // a pipe
		}
	}
}

// fetch waits for the answer to an errand. The pipe ends with the plugin that runs the delegate.
func fetch(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("ask for the address: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // only read
	var raw []byte
	for buf := make([]byte, 4096); ; {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, fmt.Errorf("ask for the address: %w", err)
		case n > 0:
			raw = append(raw, buf[:n]...)
			continue
		}
		break
	}
	var said answer
	switch err := json.Unmarshal(raw, &said); {
	case err != nil:
		return nil, fail(types.ErrTryAgainLater, "ask for the address: the plugin that runs the delegate is gone: %v", err)
	case said.Error != nil:
		return nil, said.Error
	}
	return said.Result, nil
}

// forgo gives back what an errand has reserved for a delegate that failed, where a rollback leaves an attachment alone that
// was there before. Whoever has got one of the addresses since then keeps it.
func (a attachment) forgo(ctx context.Context) error {
	store, ok := a.record.Store()
	if !ok || len(a.reserved) == 0 {
		return nil
	}
	return store.Update(ctx, func(tx ipam.Tx) error {
		var errs []error
		for _, addr := range a.reserved {
			if r, there := tx.Get(addr); there && r.Owner == a.owner {
				errs = append(errs, tx.Free(addr))
			}
		}
		return errors.Join(errs...)
	})
}
