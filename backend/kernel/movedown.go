package kernel

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// moveWhileDown renames a device on a kernel that wants it down for that, as all before Linux 6.2 do, and puts back at once
// what goes with a device that is set down: its IPv6 addresses, neighbours and routes. Packets of the milliseconds in between
// are lost; forwarding entries and IPv4 addresses stay.
func (c *Conn) moveWhileDown(link netlink.Link, op Op) error {
	if _, err := c.handle.LinkByName(op.To); err == nil {
		return unix.EEXIST // before the device is set down for nothing
	}
	before, err := c.Dump(context.Background())
	if err != nil {
		return fmt.Errorf("read what is on it: %w", err)
	}
	if err := c.handle.LinkSetDown(link); err != nil {
		return fmt.Errorf("set it down: %w", err)
	}
	name := op.To
	moveErr := c.handle.LinkSetName(link, op.To)
	if moveErr != nil {
		name = op.Name // up again all the same
	}
	if err := c.handle.LinkSetUp(link); err != nil {
		return errors.Join(moveErr, fmt.Errorf("set it up: %w", err))
	}
	c.note(op.Name, 0)
	c.note(name, link.Attrs().Index)
	errs := []error{moveErr}
	for _, back := range lostWhenDown(before, op.Name, name) {
		errs = append(errs, c.Apply(context.Background(), back))
	}
	return errors.Join(errs...)
}

// lostWhenDown lists what has to be set again on a device that was down, under the name that it has now.
func lostWhenDown(s State, was, is string) []Op {
	var ops []Op
	for a := range s.Addrs {
		if a.Link == was && a.Prefix.Addr().Is6() {
			ops = append(ops, Op{Kind: AddrSet, Addr: Addr{Link: is, Prefix: a.Prefix}})
		}
	}
	for n, mac := range s.Neighs {
		if n.Link == was {
			ops = append(ops, Op{Kind: NeighSet, Neigh: Neigh{Link: is, IP: n.IP}, MAC: mac})
		}
	}
	for key, r := range s.Routes {
		if r.Link == was && r.Ours {
			r.Link, r.More = is, 0
			ops = append(ops, Op{Kind: RouteSet, Key: key, Route: r})
		}
	}
	return ops
}
