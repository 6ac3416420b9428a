package main

import (
	"context"
	"errors"
	"io/fs"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

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
		if err := freeRest(p.ctx, c, owner); err != nil {
			return fail(types.ErrIOFailure, "%v", err)
		}
		p.leave(c.SubnetFile, owner)
		return records.Remove(owner)
	})
}

// delRecorded runs the delegate with the bytes it was added with.
func (p plugin) delRecorded(args *skel.CmdArgs, rec ipam.Record, lock *ipam.Lock) error {
	d := call{kind: rec.Type, path: args.Path, conf: rec.Raw, lock: lock, limit: p.runLimit}
	store, isHostLocal := rec.Store()
	link, err := p.mayTakeLink(args, store, isHostLocal)
	if err != nil {
		return err
	}
	if !link {
		d.env = map[string]string{"CNI_NETNS": ""}
	}
	_, err = p.run(p.ctx, d)
	if err == nil {
		return nil
	}
	if link || !isHostLocal {
		return explained(err, rec)
	}
	if owned, listErr := store.OwnedBy(ownerOf(args)); listErr == nil && len(owned) == 0 && lacksPlugin(rec, args.Path) {
		return nil // what cannot run has nothing to do
	}
	return explained(err, rec)
}

func lacksPlugin(rec ipam.Record, path string) bool {
	_, delegate := findPlugin(rec.Type, path)
	_, manager := findPlugin(rec.IPAM.Type, path)
	return delegate != nil || manager != nil
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
	return explained(err, rec)
}

// freeRest gives back what host-local did not: reservations that lost their content, which it does not know as the pod's,
// and those that it could not remove, of which it says nothing.
func freeRest(ctx context.Context, c netConf, owner ipam.Owner) error {
	store, ok := storeOf(c)
	if !ok {
		return nil
	}
	for _, addr := range ipam.ResultAddrs(c.PrevResult) {
		rest := func(r ipam.Reservation, ok bool) bool { return ok && (r.Broken || isOf(r.Owner, owner)) }
		if !rest(store.Get(addr)) {
			continue
		}
		err := store.Update(ctx, func(tx ipam.Tx) error {
			if !rest(tx.Get(addr)) { // host-local was writing it
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
