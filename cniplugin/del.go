package main

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/weft-cni/weft/subnet/ipam"
)

// del disconnects a pod. The record says how; without a good one it is worked out afresh, because a pod whose record
// was lost holds its address and its veth all the same.
func (p plugin) del(args *skel.CmdArgs) error {
	c, err := parseConfForDel(args.StdinData)
	if err != nil {
		return err
	}
	records, owner := c.records(), ownerOf(args)
	return p.locked(records, owner, func(lock *ipam.Lock) error {
		rec, err := records.Read(owner)
		switch {
		case err == nil:
			if err := p.delRecorded(args, rec, lock); err != nil {
				return err
			}
			if rec.Network == c.Name {
				break
			}
			// A record of flannel's is named after the container alone and may speak of its other interface, in
			// another network.
			fallthrough
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, ipam.ErrBroken):
			if err := p.delRebuilt(args, c, lock); err != nil {
				return err
			}
		default:
			return err
		}
		if err := freeBroken(p.ctx, c); err != nil {
			p.note("%v", err)
		}
		return records.Remove(owner)
	})
}

// delRecorded runs the delegate with the bytes it was added with.
func (p plugin) delRecorded(args *skel.CmdArgs, rec ipam.Record, lock *ipam.Lock) error {
	d := call{kind: rec.Type, path: args.Path, conf: rec.Raw, lock: lock, limit: p.runLimit}
	if !isNetns(args.Netns) {
		d.env = map[string]string{"CNI_NETNS": ""} // what is left of a namespace would make the delegate fail for ever
	}
	_, err := p.run(p.ctx, d)
	return err
}

// delRebuilt disconnects without a record. It releases what this attachment owns by host-local's own books, and takes
// the interface away only if its address is not another attachment's: a namespace path may have been given to a new
// pod since.
func (p plugin) delRebuilt(args *skel.CmdArgs, c netConf, lock *ipam.Lock) error {
	found, err := p.lookFor(args, c)
	if err != nil {
		return err
	}
	if !found.link && len(found.owned) == 0 {
		return nil // nothing is left: DEL may be called any number of times
	}
	rec, err := rebuild(c, found.hints())
	if err != nil {
		return err
	}
	d := call{kind: rec.Type, path: args.Path, conf: rec.Raw, lock: lock, limit: p.runLimit}
	if !found.link {
		d.env = map[string]string{"CNI_NETNS": ""}
	}
	_, err = p.run(p.ctx, d)
	return err
}

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
	owner := ownerOf(args)
	found := remains{prev: ipam.ResultAddrs(c.PrevResult)}
	store, isHostLocal := storeOf(c)
	var all []ipam.Reservation
	if isHostLocal {
		var err error
		if all, err = store.List(); err != nil {
			return found, err
		}
	}
	others := map[netip.Addr]bool{}
	for _, r := range all {
		switch {
		case r.Broken:
		case r.Owner == owner || r.Owner.IfName == "" && owner.IfName == "eth0" && r.Owner.Covers(owner):
			found.owned = append(found.owned, r.Addr)
		default:
			others[r.Addr] = true
		}
	}
	if !isHostLocal {
		found.owned = found.prev // another address manager keeps its own books
	}
	if !isNetns(args.Netns) {
		return found, nil
	}
	link, ok, err := lookIn(args.Netns, args.IfName)
	if err != nil {
		return found, err
	}
	found.link = ok
	for _, addr := range link.addrs {
		if others[addr] {
			p.note("%s in %s has %s, which is reserved for another attachment; it is left alone", args.IfName, args.Netns, addr)
			found.link = false
		}
	}
	return found, nil
}

// freeBroken gives back the addresses of the pod whose reservations lost their content, so that host-local does not
// know them as the pod's.
func freeBroken(ctx context.Context, c netConf) error {
	store, ok := storeOf(c)
	if !ok {
		return nil
	}
	for _, addr := range ipam.ResultAddrs(c.PrevResult) {
		if r, ok := store.Get(addr); !ok || !r.Broken {
			continue
		}
		err := store.Update(ctx, func(tx ipam.Tx) error {
			if r, ok := tx.Get(addr); !ok || !r.Broken { // host-local was writing it
				return nil
			}
			return tx.Free(addr)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
