package claim

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// podCIDRs reads spec.podCIDRs, or spec.podCIDR when that is empty: at most one masked range of each family. A range that
// cannot be used is an error of its family, and no matter of the other one's.
func podCIDRs(node Node) (out [2]netip.Prefix, errs [2]error) {
	list := node.PodCIDRs
	if len(list) == 0 && node.PodCIDR != "" {
		list = []string{node.PodCIDR}
	}
	if len(list) > 2 {
		err := fmt.Errorf("it has %d pod CIDRs: want one of each family", len(list))
		return out, [2]error{err, err}
	}
	for _, s := range list {
		f := subnet.IPv4
		if strings.Contains(s, ":") {
			f = subnet.IPv6
		}
		p, err := podCIDR(s)
		if err == nil && out[f].IsValid() {
			err = fmt.Errorf("it has two %v pod CIDRs, %s and %s: want one of each family", f, out[f], p)
		}
		if out[f] = p; err != nil {
			out[f], errs[f] = netip.Prefix{}, err
		}
	}
	return out, errs
}

// podCIDR reads one range.
func podCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil || p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("pod CIDR %.60q is not a CIDR", s)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("pod CIDR %s has host bits set: re-create the Node with %s", p, p.Masked())
	case p.Bits() > p.Addr().BitLen()-2:
		return netip.Prefix{}, fmt.Errorf("pod CIDR %s has no room for a pod", p)
	}
	return p, nil
}

// backendType is the kind that a Node names. Flannel names none for alloc.
func backendType(s string, there bool) string {
	if there && s == "" {
		return subnet.Alloc
	}
	return s
}

// noAddress is what flannel writes as public-ip where IPv4 is off, for other backends than vxlan.
const noAddress = "0.0.0.0"

func publicIP(f subnet.Family, s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, errors.New("is missing")
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%.60q is not an address", s)
	}
	return a, subnet.CheckPublicIP(f, a)
}

func backendPort(s string, there bool) (uint16, error) {
	if !there {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("annotation %s: %.40q is not a port from 1 to 65535", KeyBackendPort, s)
	}
	return uint16(n), nil
}

// nodeAddrs lists the InternalIPs and ExternalIPs. Other types (host names) and what is no address are passed over:
// cloud controllers write them, and nobody can do anything about it here.
func nodeAddrs(node Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range node.Addresses {
		if a.Type != InternalIP && a.Type != ExternalIP {
			continue
		}
		if ip, err := netip.ParseAddr(a.Address); err == nil && ip.Zone() == "" {
			out = append(out, ip.Unmap())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// Limit cuts text from other nodes to what a log line can take.
func Limit(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "")
	}
	return s
}
