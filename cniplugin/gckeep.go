package main

import (
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/weft-cni/weft/subnet/ipam"
)

// keep is the runtime's list and what was added since it was written.
func (s sweep) keep() ([]types.GCAttachment, error) {
	entries, err := s.records.List()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.ModTime.After(s.began) {
			s.names[e.Name] = true
		}
	}
	keep := append([]types.GCAttachment{}, s.valid...)
	owners, err := s.owners()
	if err != nil {
		return nil, err
	}
	for name, o := range owners {
		if s.names[name] || o == ipam.Recovered() {
			keep = append(keep, types.GCAttachment{ContainerID: o.ContainerID, IfName: o.IfName})
		}
	}
	return keep, nil
}

// hints are all reserved addresses.
func (s sweep) hints() []netip.Addr {
	store, ok := storeOf(s.conf)
	if !ok {
		return nil
	}
	all, err := store.List()
	if err != nil {
		return nil
	}
	var out []netip.Addr
	for _, r := range all {
		out = append(out, r.Addr)
	}
	return out
}

// freeAllBut does what host-local's own GC does, for a host-local that is older than the verb.
func (s sweep) freeAllBut(keep []types.GCAttachment) error {
	store, ok := storeOf(s.conf)
	if !ok {
		return nil
	}
	return store.Update(s.ctx, func(tx ipam.Tx) error {
		all, err := tx.List()
		if err != nil {
			return err
		}
		for _, r := range all {
			if !r.Broken && covered(r.Owner, keep) {
				continue
			}
			if err := tx.Free(r.Addr); err != nil {
				return err
			}
		}
		return nil
	})
}

func covered(o ipam.Owner, keep []types.GCAttachment) bool {
	for _, a := range keep {
		if o.Covers(ipam.Owner{ContainerID: a.ContainerID, IfName: a.IfName}) {
			return true
		}
	}
	return false
}
