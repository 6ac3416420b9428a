package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weft-cni/weft/subnet/ipam"
)

// rollback undoes a failed ADD and returns why it failed. The record stays when the delegate could not undo, so that
// the DEL of the runtime finds it. An attachment that was there before this ADD is not touched: a runtime that adds
// twice by mistake must not lose its pod's network.
func (p plugin) rollback(a attachment, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), p.undoTime)
	defer cancel()
	if a.earlier != nil || a.hasOlderReservation() {
		if err := errors.Join(a.putBack(), a.forgo(ctx)); err != nil {
			p.note("%v", err)
		}
		return cause
	}
	del := call{kind: a.record.Type, path: a.path, conf: a.record.Raw, lock: a.lock, limit: p.undoTime, env: map[string]string{"CNI_COMMAND": "DEL"}}
	if _, err := p.run(ctx, del); err != nil {
		// Without its plugin the delegate cannot have made anything either.
		if _, missing := findPlugin(a.record.Type, a.path); missing == nil {
			p.note("roll back %s: %v; its record stays for DEL", a.owner, err)
			return cause
		}
	}
	if err := a.freeUnfinished(ctx); err != nil {
		p.note("%v", err)
	}
	p.leave(a.gate.subnetFile, a.owner)
	if err := a.records.Remove(a.owner); err != nil {
		p.note("%v", err)
	}
	return cause
}

// freeUnfinished frees what a host-local that was killed had begun to reserve: a file without an owner, which no DEL can
// release. Under host-local's lock nobody is writing one.
func (a attachment) freeUnfinished(ctx context.Context) error {
	store, ok := a.record.Store()
	if !ok {
		return nil
	}
	all, err := store.List()
	if err != nil || !slices.ContainsFunc(all, a.unfinished) {
		return err
	}
	return store.Update(ctx, func(tx ipam.Tx) error {
		all, err := tx.List()
		if err != nil {
			return err
		}
		for _, r := range all {
			if a.unfinished(r) {
				err = errors.Join(err, tx.Free(r.Addr))
			}
		}
		return err
	})
}

func (a attachment) unfinished(r ipam.Reservation) bool {
	return r.Broken && r.Size == 0 && !a.older(r)
}

// putBack restores the record that was there before.
func (a attachment) putBack() error {
	if a.earlier == nil {
		return nil
	}
	durable, err := a.records.Write(a.owner, a.earlier)
	if err != nil {
		return err
	}
	return durable()
}

// older tells what was there before from what this ADD made: file times come from the kernel's tick, which is up to
// 10 ms behind the clock.
func (a attachment) older(r ipam.Reservation) bool {
	return r.ModTime.Before(a.began.Add(-20 * time.Millisecond))
}

// hasOlderReservation tells an attachment that lives, though its record is lost, from one that this ADD made.
func (a attachment) hasOlderReservation() bool {
	store, ok := a.record.Store()
	if !ok {
		return false
	}
	addrs, err := store.OwnedBy(a.owner)
	if err != nil {
		return true
	}
	for _, addr := range addrs {
		if r, ok := store.Get(addr); ok && a.older(r) {
			return true
		}
	}
	return false
}
