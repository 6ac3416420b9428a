package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/weft-cni/weft/subnet/ipam"
)

// sweep is one GC of one network. Whatever was being added while the runtime wrote its list of valid attachments is
// not in it, and lives.
type sweep struct {
	plugin
	path    string // CNI_PATH
	conf    netConf
	records ipam.Records
	valid   []types.GCAttachment
	names   map[string]bool // records to keep
	began   time.Time
}

// gc releases what the runtime does not list as valid: first what records tell of, then reservations nobody has a
// record for.
func (p plugin) gc(args *skel.CmdArgs) error {
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	valid, listed, err := c.validAttachments()
	if err != nil {
		return fail(types.ErrInvalidNetworkConfig, "%v", err)
	}
	if !listed {
		p.note("GC of %s: cni.dev/valid-attachments is absent, so nothing is known to be stale", c.Name)
		return nil
	}
	// File times come from the kernel's tick, which is up to 10 ms behind the clock.
	s := sweep{plugin: p, path: args.Path, conf: c, records: c.records(), valid: valid, names: map[string]bool{}, began: time.Now().Add(-20 * time.Millisecond)}
	for _, a := range valid {
		s.names[ipam.RecordName(ipam.Owner{ContainerID: a.ContainerID, IfName: a.IfName})] = true
	}
	return errors.Join(s.sweepRecords(), s.sweepReservations())
}

func (s sweep) sweepRecords() error {
	entries, err := s.records.List()
	if err != nil {
		return err
	}
	owners, err := s.owners()
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if s.names[e.Name] {
			continue
		}
		if e.ModTime.After(s.began) || s.records.BusyName(e.Name) {
			s.names[e.Name] = true
			continue
		}
		owner, known := owners[e.Name]
		if !known {
			owner = ipam.Owner{ContainerID: e.Name, IfName: "eth0"}
		}
		if rec, err := s.records.ReadName(e.Name); err == nil && rec.Network != s.conf.Name {
			continue
		}
		errs = append(errs, s.release(owner, e.Name))
	}
	return errors.Join(errs...)
}

// release deletes a stale attachment as DEL would, without its namespace: if that is still there, it goes with the
// interface in it.
func (s sweep) release(owner ipam.Owner, name string) error {
	return s.locked(s.records, owner, func(lock *ipam.Lock) error {
		rec, err := s.records.ReadName(name)
		if err == nil {
			env := map[string]string{"CNI_COMMAND": "DEL", "CNI_NETNS": "", "CNI_CONTAINERID": owner.ContainerID, "CNI_IFNAME": owner.IfName}
			_, err := s.run(s.ctx, call{kind: rec.Type, path: s.path, conf: rec.Raw, lock: lock, limit: s.runLimit, env: env})
			if err != nil {
				return err
			}
		}
		s.leave(s.conf.SubnetFile, owner)
		return s.records.RemoveName(name)
	})
}

// owners maps record names to those who hold a reservation; a record's name alone does not tell where the container's
// ID ends.
func (s sweep) owners() (map[string]ipam.Owner, error) {
	store, ok := storeOf(s.conf)
	if !ok {
		return nil, nil
	}
	all, err := store.List()
	if err != nil {
		return nil, err
	}
	out := map[string]ipam.Owner{}
	for _, r := range all {
		if !r.Broken {
			out[ipam.RecordName(r.Owner)] = r.Owner
		}
	}
	return out, nil
}

// sweepReservations lets the address manager collect. No ADD runs meanwhile: its reservation would be taken for stale.
func (s sweep) sweepReservations() error {
	ctx, cancel := context.WithTimeout(s.ctx, s.lockWait)
	defer cancel()
	lock, err := s.records.LockAll(ctx)
	if err != nil {
		return fail(types.ErrTryAgainLater, "pods are being added: %v", err)
	}
	defer lock.Close()
	keep, err := s.keep()
	if err != nil {
		return err
	}
	rec, err := rebuild(s.conf, s.hints())
	if err != nil {
		return err
	}
	if rec.IPAM.Type == "" {
		return nil // no reservation at all
	}
	conf := object{}
	if err := json.Unmarshal(rec.Raw, &conf); err != nil {
		return err
	}
	conf.set("cni.dev/valid-attachments", keep)
	conf.set("cni.dev/attachments", keep) // the name in the specification's first print
	raw, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	_, err = s.run(s.ctx, call{kind: rec.IPAM.Type, path: s.path, conf: raw, lock: lock, limit: s.runLimit})
	if err != nil && unknownVerb(err) && rec.IPAM.Type == "host-local" {
		return s.freeAllBut(keep)
	}
	return err
}
