package kernel

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

func (f *Fake) parent(index int) (HostLink, bool) {
	i := slices.IndexFunc(f.host.Links, func(l HostLink) bool { return l.Index == index })
	if i < 0 {
		return HostLink{}, false
	}
	return f.host.Links[i], true
}

// maxMTU is what fits into the underlay with a header of the outer family around it; 0 without an underlay device.
func (f *Fake) maxMTU(l Link) int {
	parent, ok := f.parent(l.Parent)
	switch {
	case !ok || l.Kind != KindVXLAN:
		return 0
	case l.Local.Is6():
		return parent.MTU - 70
	}
	return parent.MTU - 50
}

func (f *Fake) addLink(op Op) error {
	if _, ok := f.state.Links[op.Name]; ok {
		return unix.EEXIST
	}
	l := op.Link
	if _, ok := f.parent(l.Parent); !ok && l.Parent != 0 {
		return fmt.Errorf("the underlay device with index %d is gone: %w", l.Parent, unix.ENODEV)
	}
	if err := f.portFree(op.Name, l); err != nil {
		return err
	}
	if m := f.maxMTU(l); m != 0 {
		l.MTU = min(l.MTU, m)
	}
	f.index++
	l.Index, l.Key = f.index, clamped(l.Key)
	f.state.Links[op.Name] = l
	return nil
}

// portFree finds the device that keeps another from coming up.
func (f *Fake) portFree(name string, l Link) error {
	if l.Kind != KindVXLAN {
		return f.socketFree(name, l)
	}
	taken := func(other string, o Link, errno error) error {
		return fmt.Errorf("%w: %s (%w)", ErrPortTaken, portOwnerText(other, o, l), errno)
	}
	for other, o := range f.state.Links {
		switch {
		case other == name || o.Kind != KindVXLAN || o.Port != l.Port || o.Local.Is6() != l.Local.Is6():
		case o.VNI == l.VNI:
			return taken(other, o, unix.EEXIST)
		case o.Up && l.Up && (o.GBP != l.GBP || o.Extra != l.Extra): // a device that is down has no socket
			return taken(other, o, unix.EADDRINUSE)
		}
	}
	for _, o := range f.host.Links {
		if o.Kind == "vxlan" && o.Port == l.Port && o.VNI == l.VNI {
			return taken(o.Name, Link{VNI: o.VNI, Port: o.Port}, unix.EEXIST)
		}
	}
	return nil
}

// socketFree finds another WireGuard device on the same port. One that is down has no socket.
func (f *Fake) socketFree(name string, l Link) error {
	for other, o := range f.state.Links {
		if other != name && l.Kind == KindWireGuard && o.Kind == KindWireGuard && o.Port == l.Port && o.Port != 0 && o.Up && l.Up {
			return fmt.Errorf("%w: WireGuard device %s has UDP port %d: %w", ErrPortTaken, other, o.Port, unix.EADDRINUSE)
		}
	}
	return nil
}

func (f *Fake) setLink(op Op) error {
	have, ok := f.state.Links[op.Name]
	if !ok {
		return unix.ENODEV
	}
	if m := f.maxMTU(have); m != 0 && op.Link.MTU > m {
		return fmt.Errorf("set MTU: %w", unix.EINVAL)
	}
	if have.MAC != op.Link.MAC {
		f.flush(op.Name, false)
	}
	wasUp := have.Up
	if have.Kind == KindWireGuard {
		if err := f.setWireGuard(op, have); err != nil {
			return err
		}
		have.Key, have.Port, have.Extra = clamped(op.Link.Key), op.Link.Port, op.Link.Extra
	}
	have.MTU, have.MAC, have.Learning = op.Link.MTU, op.Link.MAC, op.Link.Learning
	have.SoftChecksum = have.SoftChecksum || op.Link.SoftChecksum
	f.state.Links[op.Name] = have
	have.Up = op.Link.Up
	if err := f.portFree(op.Name, have); have.Up && !wasUp && err != nil {
		return err // the rest is changed by then
	}
	if wasUp && !have.Up {
		f.flush(op.Name, true)
	}
	f.state.Links[op.Name] = have
	return nil
}

// setWireGuard checks a new port. A new key ends the sessions.
func (f *Fake) setWireGuard(op Op, have Link) error {
	moved := have
	moved.Port = op.Link.Port
	if err := f.socketFree(op.Name, moved); err != nil {
		return err
	}
	if clamped(op.Link.Key) != have.Key {
		maps.DeleteFunc(f.state.Handshakes, func(k WGKey, _ time.Time) bool { return k.Link == op.Name })
	}
	return nil
}
