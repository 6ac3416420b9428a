package underlay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// ErrOverlap means that the pod network covers addresses which the host has on a device of its own.
var ErrOverlap = errors.New("pod network overlaps a local network")

// Duplicate reports the peers that announce the address that we are about to announce, as machines do that were
// cloned with one address on their first interface: packets for it come to us, or ours go to them. The error wraps
// subnet.ErrAddressTaken.
func Duplicate(u Underlay, s subnet.Snapshot) error {
	var names []string
	for _, p := range s.Peers {
		if slices.ContainsFunc(p.Endpoints[:], func(e subnet.Endpoint) bool { return e.PublicIP == u.Announced }) {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 || !u.Announced.IsValid() {
		return nil
	}
	cure := "choose another address with --iface or --iface-from=" + FromInternalIP
	if u.Source != "" {
		cure = "change " + u.Source
	}
	return fmt.Errorf("announce %s: already announced by %s; %s, or go on with --allow-shared-public-ip: %w",
		u.Announced, strings.Join(names, ", "), cure, subnet.ErrAddressTaken)
}

// Overlaps reports the devices, other than the overlay's own and the bridge of the pods, that have an address or a
// subnet inside one of the pod networks: packets for those pods would stay on the host. own are the node's own pod
// ranges, by which the bridge of the pods is known. A local network that is wider than the pod network is no overlap: the
// kernel's longest match sorts the two.
func Overlaps(networks, own []netip.Prefix, host kernel.Host) error {
	v := newView(Options{}, host)
	pods := v.podBridges(own)
	var found []string
	for _, a := range host.Addrs {
		l, ok := v.link(a.Index)
		if !ok || !l.Up || v.barred(l) != nil || pods[l.Index] || podSide(l, a) {
			continue
		}
		for _, n := range networks {
			if n.Contains(a.Prefix.Addr()) && n.Bits() <= a.Prefix.Bits() {
				found = append(found, fmt.Sprintf("%s has %s inside %s", l.Name, a.Prefix, n))
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("check the pod network: %s; move one of the two: %w", strings.Join(found, "; "), ErrOverlap)
}

// podBridges finds the bridge of the pods, whatever its name: it has an address of one of the node's ranges, with that range's
// length. Beside the bridge of the usual name any other one has it by accident, as docker0 does on the node whose range it met.
func (v view) podBridges(own []netip.Prefix) map[int]bool {
	bridges, usual := map[int]bool{}, false
	for _, a := range v.host.Addrs {
		l, ok := v.link(a.Index)
		if !ok || !slices.Contains(own, a.Prefix.Masked()) || l.Kind != "bridge" && l.Name != podBridge {
			continue
		}
		bridges[l.Index] = true
		usual = usual || l.Name == podBridge
	}
	if usual {
		return nil // its name has told already
	}
	return bridges
}

// podSide reports whether an address is the gateway that a point-to-point CNI plugin gives to one pod.
func podSide(l kernel.HostLink, a kernel.HostAddr) bool {
	return l.Kind == "veth" && a.Prefix.IsSingleIP()
}
