package mesh

import (
	"errors"
	"fmt"

	"github.com/weft-cni/weft/backend/wireguard"
	"github.com/weft-cni/weft/subnet"
)

// minMTU is what a family needs on every device: below it the kernel takes the family off.
func minMTU(f subnet.Family) int { return [2]int{subnet.IPv4: 68, subnet.IPv6: 1280}[f] }

// direct reports whether neighbours are reached by plain routes although the backend has tunnels.
func (c Config) direct() bool {
	return c.DirectRouting && (c.Kind == subnet.VXLAN || c.Kind == subnet.IPIP)
}

// able lists the kinds that this node can speak with what the configuration holds: its own, those of before, and plain routes
// with DirectRouting.
func (c Config) able() subnet.Kinds {
	k := subnet.KindsOf(c.Kind) | c.Former
	if c.direct() {
		k |= subnet.KindsOf(subnet.HostGW)
	}
	if c.VXLAN.Port == 0 {
		k &^= subnet.KindsOf(subnet.VXLAN)
	}
	if c.WireGuard.Key.IsZero() {
		k &^= subnet.KindsOf(subnet.WireGuard)
	}
	return k
}

// Validate returns everything about the configuration that cannot work on this host, each with its value, its place and its
// cure.
func (c Config) Validate() error {
	var errs []error
	used := 0
	for _, f := range subnet.Families() {
		if !c.Ends[f].IsZero() {
			used++
			errs = append(errs, c.CheckEnd(f))
		}
	}
	if used == 0 {
		errs = append(errs, errors.New("no address family is in use: the Node needs a pod CIDR of a family that net-conf.json enables"))
	}
	if subnet.KindsOf(c.Kind) == 0 {
		errs = append(errs, fmt.Errorf("backend %q is none of %v", c.Kind, subnet.BackendKinds()))
	}
	if c.Kind == subnet.WireGuard && c.WireGuard.Key.IsZero() {
		errs = append(errs, errors.New("no private key for WireGuard"))
	}
	if c.Kind == subnet.VXLAN {
		errs = append(errs, c.vxlan([2]int{}).Validate())
	}
	return errors.Join(errs...)
}

// CheckEnd tells what is wrong with the own end of one family, which must not be planned for then.
func (c Config) CheckEnd(f subnet.Family) error {
	return errors.Join(c.validateEnd(f), c.validateMTU(f))
}

func (c Config) validateEnd(f subnet.Family) error {
	e := c.Ends[f]
	switch {
	case !e.PodCIDR.IsValid() || subnet.FamilyOf(e.PodCIDR.Addr()) != f:
		return fmt.Errorf("%s pod CIDR %s of the own Node is not usable", f, e.PodCIDR)
	case !e.Local.IsValid() || subnet.FamilyOf(e.Local) != f:
		return fmt.Errorf("%s tunnel address %s of %s is not usable", f, e.Local, e.ParentName)
	case e.PodCIDR.Contains(e.Local):
		return fmt.Errorf("%s tunnel address %s of %s lies inside the own pod CIDR %s: the pod network must not overlap the underlay",
			f, e.Local, e.ParentName, e.PodCIDR)
	}
	return nil
}

func (c Config) validateMTU(f subnet.Family) error {
	e, overhead := c.Ends[f], subnet.Overhead(c.Kind, f)
	if e.UnderlayMTU > 0 && c.MTU > e.UnderlayMTU {
		return fmt.Errorf("MTU %d in net-conf.json is larger than the %d of the underlay device %s: lower it, leave it out, "+
			"or raise the device's", c.MTU, e.UnderlayMTU, e.ParentName)
	}
	mtu, place := e.UnderlayMTU, "of the underlay device "+e.ParentName
	if c.MTU != 0 {
		mtu, place = c.MTU, "in net-conf.json"
	}
	if mtu-overhead < minMTU(f) {
		return fmt.Errorf("MTU %d %s leaves %d for %s pods after %d bytes of %s headers: %s needs at least %d",
			mtu, place, mtu-overhead, f, overhead, c.Kind, f, minMTU(f))
	}
	return nil
}

// wireguard is what that backend's planner works from; its devices fit into packets of the given sizes.
func (c Config) wireguard(base [2]int) wireguard.Config {
	w := wireguard.Config{Conf: c.WireGuard.Conf, Key: c.WireGuard.Key}
	for f, e := range c.Ends {
		if !e.IsZero() {
			w.Ends[f] = wireguard.End{PodCIDR: e.PodCIDR, Local: e.Local, MTU: base[f] - subnet.Overhead(subnet.WireGuard, subnet.Family(f))}
		}
	}
	return w
}
