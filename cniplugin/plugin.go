package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/weft-cni/weft/subnet/ipam"
)

// plugin is one call of the plugin. The durations are fields so that tests need not wait for them.
type plugin struct {
	ctx     context.Context // ends when the runtime sends SIGTERM
	stdout  io.Writer
	stderr  io.Writer
	environ []string
	idle    func() // is called when there is nothing to do but to wait for a delegate; may be nil

	envWait  time.Duration // how long ADD waits for subnet.env
	lockWait time.Duration // how long a verb waits for another one on the same attachment
	runLimit time.Duration // how long a delegate may take
	askTime  time.Duration // how long a program of the host may take to say that it works
	undoTime time.Duration // how long the rollback of an ADD may take, after SIGTERM too
}

func newPlugin(ctx context.Context) plugin {
	return plugin{
		ctx: ctx, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ(),
		// The kubelet gives a runtime two minutes; a rollback has to fit in behind the rest.
		envWait: 5 * time.Second, lockWait: 30 * time.Second, runLimit: 60 * time.Second, askTime: 5 * time.Second, undoTime: 20 * time.Second,
	}
}

func (p plugin) verbs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: p.staged(p.add, p.stagedAdd), Del: p.staged(p.del, p.stagedDel), Check: p.check, GC: p.gc, Status: p.status}
}

// note writes a line to the runtime's log.
func (p plugin) note(format string, args ...any) {
	_, _ = fmt.Fprintf(p.stderr, "flannel: "+format+"\n", args...)
}

// locked runs f while no other verb works on the attachment. Where no lock can be made, f runs without: on a full disk
// pods have to go away.
func (p plugin) locked(r ipam.Records, o ipam.Owner, f func(*ipam.Lock) error) error {
	ctx, cancel := context.WithTimeout(p.ctx, p.lockWait)
	defer cancel()
	lock, err := r.LockOne(ctx, o)
	switch {
	case err == nil:
		defer lock.Close()
	case ctx.Err() != nil:
		return fail(types.ErrTryAgainLater, "another call works on %s: %v", o, err)
	default:
		p.note("%s: %v", o, err)
	}
	return f(lock)
}

func ownerOf(args *skel.CmdArgs) ipam.Owner {
	return ipam.Owner{ContainerID: args.ContainerID, IfName: args.IfName}
}

// fail is an error with a code of the CNI specification.
func fail(code uint, format string, args ...any) error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}
