package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/weft-cni/weft/subnet/ipam"
)

// attachment is an ADD under way.
type attachment struct {
	args    *skel.CmdArgs
	owner   ipam.Owner
	netns   string // CNI_NETNS
	path    string // CNI_PATH
	self    string // our own type in it
	records ipam.Records
	record  ipam.Record // what the delegate is given
	gate    gate
	subnets []netip.Prefix
	lock    *ipam.Lock
	began   time.Time
	earlier []byte // record that was there before; nil without one

	reserved []netip.Addr // by an errand
}

// add connects a pod: complete the configuration, note it, run the delegate, check the bridge, print the result.
func (p plugin) add(args *skel.CmdArgs) error {
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if _, ok := c.IPAM["ranges"]; ok {
		p.note("ipam.ranges is replaced by the node's subnet out of %s", c.SubnetFile)
	}
	a := attachment{args: args, owner: ownerOf(args), netns: args.Netns, path: args.Path, self: c.Type, records: c.records(), began: time.Now()}
	ctx, cancel := context.WithTimeout(p.ctx, p.lockWait)
	defer cancel()
	// Before the wait for subnet.env, so that a DEL that comes meanwhile has its say after us.
	a.lock, err = a.records.LockForAdd(ctx, a.owner)
	switch {
	case err != nil && ctx.Err() != nil:
		return fail(types.ErrTryAgainLater, "another call works on %s, or a GC is running: %v", a.owner, err)
	case err != nil:
		return fail(types.ErrIOFailure, "%v", err)
	}
	defer a.lock.Close()
	n, err := p.waitEnv(c.SubnetFile)
	if err != nil {
		return err
	}
	a.subnets = n.Subnets
	if a.record, err = recordOf(c, n); err != nil {
		return err
	}
	if a.gate, err = gateOf(args, c.SubnetFile); err != nil {
		return err
	}
	out, err := p.attach(a)
	if err != nil {
		return err
	}
	_, err = p.stdout.Write(out)
	return err
}

// recordOf is the delegate's configuration in the form in which it is kept.
func recordOf(c netConf, n nodeNet) (ipam.Record, error) {
	d, err := buildDelegate(c, n)
	if err != nil {
		return ipam.Record{}, err
	}
	raw, err := json.Marshal(d)
	if err != nil {
		return ipam.Record{}, fmt.Errorf("write the delegate's configuration: %w", err)
	}
	return ipam.ParseRecord(raw)
}

// attach runs the delegate between a record that is written before and a rollback that takes back what failed.
func (p plugin) attach(a attachment) ([]byte, error) {
	switch earlier, err := a.records.Read(a.owner); {
	case err == nil:
		a.earlier = earlier.Raw
	case !errors.Is(err, fs.ErrNotExist):
		p.note("%v; it is replaced", err)
	}
	c, err := openRtnl()
	if err != nil {
		return nil, fail(types.ErrTryAgainLater, "%v", err)
	}
	defer c.Close()
	durable, err := a.records.Write(a.owner, a.record.Raw)
	if err != nil {
		return nil, fail(types.ErrIOFailure, "%v", err)
	}
	b := bridgeOf(a.record)
	if store, ok := a.record.Store(); ok && b.name != "" {
		if err := keepLiveNeighbours(p.ctx, c, b.name, store, a.subnets); err != nil {
			p.note("%v", err)
		}
	}
	d := p.prepare(c, a)
	var out []byte
	out, a.reserved, err = p.delegate(a, d)
	if err == nil {
		out = d.bare.mend(out)
		if d.gateways == nil {
			d.gateways = gatewaysOf(out)
		}
		err = b.verify(c, d.gateways)
	}
	if err == nil && d.bare.on() {
		err = p.settle(a.netns, a.owner.IfName)
	}
	if syncErr := durable(); err == nil && syncErr != nil {
		err = fail(types.ErrIOFailure, "%v", syncErr)
	}
	if err == nil {
		err = p.enter(a.gate, out)
	}
	if err == nil && p.ctx.Err() != nil {
		err = fail(types.ErrTryAgainLater, "the runtime gave up")
	}
	if err != nil {
		err = types.NewError(codeOf(err), "failed to delegate add: "+explain(err, a.record), "")
		return nil, p.rollback(a, err)
	}
	return out, nil
}

// delegate runs the delegate, and while it starts what it will ask for, and tells what that has reserved.
func (p plugin) delegate(a attachment, d delegation) (out []byte, reserved []netip.Addr, err error) {
	c := call{kind: a.record.Type, path: a.path, conf: d.conf, lock: a.lock, limit: p.runLimit, meanwhile: func() { p.tellHost(a.gate.subnetFile) }}
	s := stage{Type: a.record.IPAM.Type, SubnetFile: a.gate.subnetFile, Free: !a.gate.stands, Bare: d.bare.on()}
	if s.Free && !s.Bare {
		out, err = p.run(p.ctx, c)
		return out, nil, err
	}
	e, err := newErrand(s, d.conf)
	if err != nil { // then the stage does it
		c.conf = s.into(d.conf, a.self, a.path)
		out, err = p.run(p.ctx, c)
		return out, nil, err
	}
	defer e.close()
	c.conf = e.stage.into(d.conf, a.self, a.path)
	if _, _, staged := unstage(c.conf); staged {
		c.meanwhile = func() { e.run(p, a.args); p.tellHost(a.gate.subnetFile) }
	}
	out, err = p.run(p.ctx, c)
	return out, e.reserved, err
}

// delegation is what is left for the delegate to do.
type delegation struct {
	conf     []byte
	bare     bare
	gateways []netip.Addr // of the bridge, when this plugin has given them to it
}

// prepare sets the bridge up and leaves the rest to the delegate: all that is recorded, if it has to do everything.
func (p plugin) prepare(c rtnl, a attachment) delegation {
	all := delegation{conf: a.record.Raw}
	ours, ok := plainOf(a.record, a.subnets)
	if !ok {
		return all
	}
	err := ours.gateway.ensure(c)
	if err == nil {
		var rest delegation
		if rest.conf, rest.bare, err = ours.render(); err == nil {
			for _, p := range ours.gateway.addrs {
				rest.gateways = append(rest.gateways, p.Addr())
			}
			return rest
		}
	}
	if !errors.Is(err, errLeave) {
		p.note("%v; the delegate is left to do it", err)
	}
	return all
}
