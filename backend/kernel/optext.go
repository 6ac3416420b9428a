package kernel

import (
	"fmt"
	"net/netip"
	"strings"
)

// String is the command that does the same.
func (o Op) String() string {
	switch o.Kind {
	case LinkAdd:
		return fmt.Sprintf("ip link add %s%s mtu %d%s type %s", o.Name, address(o.Link), o.Link.MTU, up(o.Link), o.Link) + o.second("; ")
	case LinkSet:
		if changes := o.changes(); changes != "" {
			return "ip link set " + o.Name + changes + o.second("; ")
		}
		return o.second("")
	case LinkDel:
		return "ip link del " + o.Name
	case LinkMove:
		return "ip link set " + o.Name + " name " + o.To
	case AddrSet:
		return "ip addr replace " + o.Addr.String()
	case AddrDel:
		return "ip addr del " + o.Addr.String()
	case NeighSet:
		return fmt.Sprintf("ip neigh replace %s lladdr %s dev %s nud permanent", o.Neigh.IP, o.MAC, o.Neigh.Link)
	case NeighDel:
		return fmt.Sprintf("ip neigh del %s dev %s", o.Neigh.IP, o.Neigh.Link)
	case FDBSet:
		return fmt.Sprintf("bridge fdb replace %s dev %s %s self permanent", o.FDBKey.MAC, o.FDBKey.Link, o.FDB)
	case FDBDel:
		return fmt.Sprintf("bridge fdb del %s dev %s self", o.FDBKey.MAC, o.FDBKey.Link)
	case PeerSet:
		return fmt.Sprintf("wg set %s peer %s%s", o.PeerKey.Link, o.PeerKey.Key, o.Peer)
	case RangeDel:
		return fmt.Sprintf("wg set %s peer %s allowed-ips -%s", o.PeerKey.Link, o.PeerKey.Key, o.Range)
	case PeerDel:
		return fmt.Sprintf("wg set %s peer %s remove", o.PeerKey.Link, o.PeerKey.Key)
	case RouteSet:
		return fmt.Sprintf("ip route %s %s", map[bool]string{true: "replace", false: "add"}[o.Replace], routeText(o.Key, o.Route)) + o.foreign()
	case RouteDel:
		return "ip route del " + routeText(o.Key, o.Route)
	}
	return fmt.Sprintf("op %d", o.Kind)
}

// changes lists what a LinkSet changes.
func (o Op) changes() string {
	var b strings.Builder
	if o.Link.MTU != o.Was.MTU {
		fmt.Fprintf(&b, " mtu %d", o.Link.MTU)
	}
	if o.Link.MAC != o.Was.MAC {
		fmt.Fprintf(&b, " address %s", o.Link.MAC)
	}
	if o.Link.Up != o.Was.Up {
		b.WriteString(map[bool]string{true: " up", false: " down"}[o.Link.Up])
	}
	if o.Link.Learning != o.Was.Learning {
		b.WriteString(" type vxlan " + learning(o.Link))
	}
	return b.String()
}

// second is the second command that a device may take.
func (o Op) second(separator string) string {
	var words string
	switch {
	case o.Link.SoftChecksum && !o.Was.SoftChecksum:
		words = fmt.Sprintf("ethtool -K %s %s off", o.Name, checksumFeature)
	case o.Link.Kind == KindWireGuard:
		if words = wireGuardChanges(o.Link, o.Was); words != "" {
			words = "wg set " + o.Name + words
		}
	}
	if words == "" {
		return ""
	}
	return separator + words
}

// wireGuardChanges lists what wg(8) has to set.
func wireGuardChanges(want, have Link) string {
	var b strings.Builder
	if want.Port != have.Port {
		fmt.Fprintf(&b, " listen-port %d", want.Port)
	}
	if want.Key != have.Key {
		fmt.Fprintf(&b, " private-key %s", want.Key)
	}
	if want.Extra != have.Extra {
		b.WriteString(" fwmark off")
	}
	return b.String()
}

// foreign tells what a route takes the place of.
func (o Op) foreign() string {
	if !o.Displaces() {
		return ""
	}
	return " in place of " + routeText(o.Key, o.Foreign)
}

// address is the MAC; devices that carry IP packets only have none.
func address(l Link) string {
	if l.MAC.IsZero() && l.Kind != KindVXLAN {
		return ""
	}
	return fmt.Sprintf(" address %s", l.MAC)
}

func up(l Link) string {
	if l.Up {
		return " up"
	}
	return ""
}

func learning(l Link) string {
	if l.Learning {
		return "learning"
	}
	return "nolearning"
}

// String is the device's type and properties as `ip -d link` words them. The parent is written by its index: the ip
// command takes if2 for a name.
func (l Link) String() string {
	s := l.Kind
	switch l.Kind {
	case KindVXLAN:
		s = fmt.Sprintf("vxlan id %d dev if%d local %s dstport %d %s", l.VNI, l.Parent, l.Local, l.Port, learning(l))
	case KindIPIP:
		s += " remote any local " + l.Local.String() + parent(l) + " ttl inherit nopmtudisc"
	case KindIP6Tnl:
		s += " mode ip6ip6 remote any local " + l.Local.String() + parent(l) + " encaplimit none"
	}
	if l.GBP {
		s += " gbp"
	}
	if l.Extra != "" {
		s += " " + l.Extra
	}
	return s
}

func parent(l Link) string {
	if l.Parent == 0 {
		return ""
	}
	return fmt.Sprintf(" dev if%d", l.Parent)
}

// String is " endpoint 192.168.0.2:51820 allowed-ips 10.244.2.0/24" and the rest as wg(8) words it, without the secret.
func (p WGPeer) String() string {
	var b strings.Builder
	if p.Endpoint.IsValid() {
		b.WriteString(" endpoint " + p.Endpoint.String())
	}
	separator := " allowed-ips "
	for _, r := range valid(p.Allowed) {
		b.WriteString(separator + r.String())
		separator = ","
	}
	if p.More > 0 {
		fmt.Fprintf(&b, " and %d more", p.More)
	}
	if p.Keepalive > 0 {
		fmt.Fprintf(&b, " persistent-keepalive %d", int(p.Keepalive.Seconds()))
	}
	if !p.PSK.IsZero() {
		fmt.Fprintf(&b, " preshared-key %s", p.PSK)
	}
	return b.String()
}

// String is "10.244.1.0/32 dev flannel.1".
func (a Addr) String() string { return fmt.Sprintf("%s dev %s", a.Prefix, a.Link) }

// String is "dst 192.168.0.2", with what is unusual about the destination.
func (d FDBDest) String() string {
	s := "dst " + d.Dst.String()
	if d.Port != 0 {
		s += fmt.Sprintf(" port %d", d.Port)
	}
	if d.More > 0 {
		s += fmt.Sprintf(" and %d more", d.More)
	}
	return s
}

// routeText is a route as `ip route` prints it.
func routeText(k RouteKey, r Route) string {
	var b strings.Builder
	if r.Type != "unicast" && r.Type != "" {
		b.WriteString(r.Type + " ")
	}
	b.WriteString(dstText(k.Dst))
	if r.Via.IsValid() {
		b.WriteString(" via " + r.Via.String())
	}
	if r.Link != "" {
		b.WriteString(" dev " + r.Link)
	}
	if r.Ours {
		fmt.Fprintf(&b, " proto %d", Protocol)
	}
	if k.Metric != 0 {
		fmt.Fprintf(&b, " metric %d", k.Metric)
	}
	if r.Onlink {
		b.WriteString(" onlink")
	}
	if r.More > 0 {
		fmt.Fprintf(&b, " and %d more", r.More)
	}
	return b.String()
}

func dstText(p netip.Prefix) string {
	if p.Bits() == 0 {
		return "default"
	}
	return p.String()
}
