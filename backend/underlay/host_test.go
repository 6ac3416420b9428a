package underlay

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// host reads a host from lines that look like what ip prints:
//
//	link eth0 [kind bridge] [master br0] [mtu 1400] [mac 0a:00:00:00:00:01] [down]
//	addr eth0 10.0.0.11/24 [secondary] [dynamic] [deprecated] [temporary] [dadfailed]
//	route default via 10.0.0.1 dev eth0 [nexthop ...] [src 10.0.0.11] [metric 100] [mtu 1400] [type blackhole]
//	rules 2
//
// A device's index is its place in the text.
func host(t *testing.T, text string) kernel.Host {
	t.Helper()
	var h kernel.Host
	index := map[string]int{}
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		if len(w) < 2 {
			continue
		}
		switch w[0] {
		case "link":
			index[w[1]] = len(h.Links) + 1
			h.Links = append(h.Links, link(t, w, index))
		case "addr":
			h.Addrs = append(h.Addrs, addr(t, w, index))
		case "route":
			h.Routes = append(h.Routes, route(t, w, index))
		case "rules":
			h.Rules = number(t, w[1])
		default:
			t.Fatalf("host line %q", line)
		}
	}
	return h
}

func link(t *testing.T, w []string, index map[string]int) kernel.HostLink {
	t.Helper()
	l := kernel.HostLink{Name: w[1], Index: index[w[1]], Kind: "device", MTU: 1500, Up: true, Loopback: w[1] == "lo"}
	for i := 2; i < len(w); i++ {
		switch w[i] {
		case "down":
			l.Up = false
		case "kind":
			i++
			l.Kind = w[i]
		case "mtu":
			i++
			l.MTU = number(t, w[i])
		case "mac":
			i++
			mac, err := subnet.ParseMAC(w[i])
			if err != nil {
				t.Fatal(err)
			}
			l.MAC = mac
		case "master":
			i++
			l.Master = index[w[i]]
		default:
			t.Fatalf("link word %q", w[i])
		}
	}
	return l
}

func addr(t *testing.T, w []string, index map[string]int) kernel.HostAddr {
	t.Helper()
	p := netip.MustParsePrefix(w[2])
	a := kernel.HostAddr{Index: index[w[1]], Prefix: p, Permanent: true, LinkLocal: p.Addr().IsLinkLocalUnicast()}
	for _, word := range w[3:] {
		switch word {
		case "secondary":
			a.Secondary = true
		case "dynamic":
			a.Permanent = false
		case "deprecated":
			a.Deprecated = true
		case "dadfailed":
			a.Duplicate = true
		case "temporary":
			a.Temporary, a.Secondary = true, true // one bit in the kernel
		default:
			t.Fatalf("addr word %q", word)
		}
	}
	return a
}

func route(t *testing.T, w []string, index map[string]int) kernel.HostRoute {
	t.Helper()
	r := kernel.HostRoute{Type: "unicast"}
	switch w[1] {
	case "default":
		r.Dst = netip.MustParsePrefix("0.0.0.0/0")
	case "default6":
		r.Dst = netip.MustParsePrefix("::/0")
	default:
		r.Dst = netip.MustParsePrefix(w[1])
	}
	var via netip.Addr
	for i := 2; i+1 < len(w); i += 2 {
		switch w[i] {
		case "via":
			via = netip.MustParseAddr(w[i+1])
		case "dev":
			r.Hops = append(r.Hops, kernel.Hop{Index: index[w[i+1]], Via: via})
			via = netip.Addr{}
		case "src":
			r.Src = netip.MustParseAddr(w[i+1])
		case "metric":
			r.Metric = number(t, w[i+1])
		case "mtu":
			r.MTU = number(t, w[i+1])
		case "type":
			r.Type = w[i+1]
		default:
			t.Fatalf("route word %q", w[i])
		}
	}
	return r
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ip parses an address; empty text is no address.
func ip(s string) netip.Addr {
	if s == "" {
		return netip.Addr{}
	}
	return netip.MustParseAddr(s)
}

func nets(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

var pods = nets("10.244.0.0/16", "fd00:10:244::/56")

// pick is Pick as one line: "eth0 10.0.0.11", with "public" and "announced" where they differ, or the error.
func pick(t *testing.T, opt Options, h kernel.Host) string {
	t.Helper()
	opt.PodNetworks = pods
	u, err := Pick(opt, h)
	if err != nil {
		return "error: " + err.Error()
	}
	for _, l := range h.Links {
		if l.Name == u.Link && (l.Index != u.Index || l.MTU != u.MTU) {
			t.Errorf("index %d, MTU %d of %s; want %d, %d", u.Index, u.MTU, u.Link, l.Index, l.MTU)
		}
	}
	if strings.Contains(u.Reason, "\n") || u.Reason == "" {
		t.Errorf("reason is not one line: %q", u.Reason)
	}
	line := u.Link + " " + u.Addr.String()
	if u.Public != u.Addr {
		line += " public " + u.Public.String()
	}
	if u.Announced != u.Public {
		line += " announced " + u.Announced.String()
	}
	return line
}

const v6 = subnet.IPv6
