package main

import (
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/weft-cni/weft/subnet/ipam"
)

// remains is what is left of an attachment whose record is lost.
type remains struct {
	owned []netip.Addr // reserved under its name
	prev  []netip.Addr // in the result the runtime kept
	link  bool         // its interface is there and not another attachment's
}

// hints are addresses from whose ranges host-local has to release; none means that it must not be called.
func (r remains) hints() []netip.Addr {
	if len(r.owned) == 0 {
		return nil
	}
	return append(r.owned, r.prev...)
}

func (p plugin) lookFor(args *skel.CmdArgs, c netConf) (remains, error) {
	found := remains{prev: ipam.ResultAddrs(c.PrevResult)}
	store, isHostLocal := storeOf(c)
	var all []ipam.Reservation
	if isHostLocal {
		var err error
		if all, err = store.List(); err != nil {
			return found, err
		}
	}
	for _, r := range all {
		if !r.Broken && isOf(r.Owner, ownerOf(args)) {
			found.owned = append(found.owned, r.Addr)
		}
	}
	if !isHostLocal {
		found.owned = found.prev // another address manager keeps its own books
	}
	var err error
	found.link, err = p.mayTakeLink(args, store, isHostLocal)
	return found, err
}

// mayTakeLink reports whether there is an interface for the delegate to take away. What is left of a namespace would make
// the delegate fail for ever, and a path may lead elsewhere since: to another pod's namespace, or, where a runtime names
// namespaces by process, to the host's own, where the delegate would delete the node's eth0.
func (p plugin) mayTakeLink(args *skel.CmdArgs, store ipam.Store, isHostLocal bool) (bool, error) {
	if !isNetns(args.Netns) {
		return false, nil
	}
	if isOwnNetns(args.Netns) {
		p.note("%s is the host's own namespace; %s in it is left alone", args.Netns, args.IfName)
		return false, nil
	}
	link, ok, err := lookIn(args.Netns, args.IfName)
	if err != nil || !ok || !isHostLocal {
		return ok, err
	}
	for _, addr := range link.addrs {
		r, ok := store.Get(addr)
		if ok && !r.Broken && r.Owner != ipam.Recovered() && !isOf(r.Owner, ownerOf(args)) {
			p.note("%s in %s has %s, which is reserved for another attachment; it is left alone", args.IfName, args.Netns, addr)
			return false, nil
		}
	}
	return true, nil
}

// isOf reports whether a reservation is an attachment's. One without an interface, of an old host-local, is eth0's.
func isOf(reserved, owner ipam.Owner) bool {
	return reserved == owner || reserved.IfName == "" && owner.IfName == "eth0" && reserved.Covers(owner)
}
