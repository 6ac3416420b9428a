package main

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/weft-cni/weft/subnet/attach"
	"github.com/weft-cni/weft/subnet/ipam"
)

// gate is how a new pod waits for its policies; package attach and the agent's package gate say why. It does nothing in a
// cluster without policies, but for a note of a hundred bytes.
type gate struct {
	subnetFile string
	note       attach.Note
	notes      attach.Notes
	socket     string
	stands     bool // there are policies
	named      bool // the runtime says which pod it is; without that no policy can select it
}

// gateOf looks whether there are policies.
func gateOf(args *skel.CmdArgs, subnetFile string) (gate, error) {
	g := gate{subnetFile: subnetFile}
	g.notes, g.socket = attach.Paths(subnetFile)
	if g.note, g.named = attach.NoteOf(args.ContainerID, args.IfName, args.Args); !g.named {
		return g, nil
	}
	var err error
	if g.stands, err = attach.Enforced(); err != nil {
		return g, fail(types.ErrTryAgainLater, "%v", err)
	}
	return g, nil
}

// hold writes the note and then holds the addresses, in this order: an address that is held and of which nobody knows
// whose it is would be taken for a left-over.
func (g *gate) hold(addrs []netip.Addr) error {
	if !g.named {
		return nil
	}
	g.note.Addrs, g.note.At, g.note.Held = addrs, time.Now().UnixNano(), g.stands
	if _, err := g.notes.Write(g.note); err != nil {
		if g.stands {
			return fail(types.ErrIOFailure, "%v", err)
		}
		return nil // nobody waits for it, and the API server tells the same a second later
	}
	if !g.stands {
		return nil
	}
	if err := attach.HoldWhileEnforced(addrs); err != nil {
		return fail(types.ErrTryAgainLater, "%v", err)
	}
	return nil
}

// enter has the attached pod judged. When that takes too long the pod starts held, and that is no error.
func (p plugin) enter(g gate, result []byte) error {
	if !g.named {
		return nil
	}
	addrs := ipam.ResultAddrs(result)
	if len(addrs) == 0 {
		return nil
	}
	// The stage has written the note, unless the delegate did not ask for its address that way.
	if written, err := g.notes.Read(g.note.Name()); g.stands && err == nil && slices.Equal(written.Addrs, addrs) {
		g.note = written
	} else if err := g.hold(addrs); err != nil {
		return err
	}
	if !g.stands {
		return nil
	}
	if err := attach.Ask(p.ctx, g.socket, g.note); err != nil {
		p.note("pod %s/%s starts without network, until the agent has judged it: %v", g.note.Namespace, g.note.Pod, err)
	}
	return nil
}

// leave takes the note of a pod away that is gone.
func (p plugin) leave(subnetFile string, o ipam.Owner) {
	notes, _ := attach.Paths(subnetFile)
	if _, err := notes.Remove(o.ContainerID, o.IfName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.note("%v", err)
	}
}
