package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/e2e/cluster"
	"github.com/weft-cni/weft/tests/lane"
)

// state is what a node's kernel holds for its peers in one family, as iproute2 prints it, sorted.
type state struct {
	FDB, Neighbours []string // of the tunnel's device
	Routes          []string // into the pod network, whatever their device
}

func (s state) sorted() state {
	for _, list := range [][]string{s.FDB, s.Neighbours, s.Routes} {
		slices.Sort(list)
	}
	return s
}

// stateOf reads it from a node.
func stateOf(t *testing.T, m cluster.Machine, f subnet.Family) state {
	t.Helper()
	lines := func(args ...string) []string {
		out, err := m.Exec(t.Context(), args...)
		if err != nil {
			return []string{err.Error()} // no device, say
		}
		var all []string
		for line := range strings.Lines(out) {
			line = strings.Join(strings.Fields(line), " ")
			if !strings.HasPrefix(line, "33:33:") && !strings.HasPrefix(line, "01:00:5e:") && !strings.HasPrefix(line, "fe80:") && !strings.HasPrefix(line, "ff02:") {
				all = append(all, line)
			}
		}
		return all
	}
	family := word(f, "-4", "-6")
	var s state
	if tunnels() {
		s.FDB = lines("bridge", "fdb", "show", "dev", device(f))
		s.Neighbours = lines("ip", family, "neigh", "show", "dev", device(f))
	}
	for _, line := range lines("ip", family, "route", "show") {
		if route, ok := routeToPods(line, f); ok {
			s.Routes = append(s.Routes, route)
		}
	}
	return s.sorted()
}

// routeToPods takes from a route what is no matter of the contract; false for one that leads elsewhere, or to the own pods.
func routeToPods(line string, f subnet.Family) (string, bool) {
	destination, _, _ := strings.Cut(line, " ")
	to, err := netip.ParsePrefix(destination)
	if err != nil || !subnet.Contains(lane.Network(f), to) || strings.Contains(line, " dev cni0 ") || strings.Contains(line, " proto kernel ") {
		return "", false
	}
	line, _, _ = strings.Cut(line, " linkdown")
	for _, word := range []string{" proto 87", " pref medium"} {
		line = strings.Replace(line, word, "", 1)
	}
	return usualMetric.ReplaceAllString(line, ""), true
}

// usualMetric is that of IPv6 routes: 1024, and one less for each time that a route has moved.
var usualMetric = regexp.MustCompile(` metric 10[0-2][0-9]`)

// wantedState is what m must hold for the others.
func wantedState(m member, all []member, f subnet.Family) state {
	var s state
	for _, peer := range all {
		if peer.node.Name == m.node.Name {
			continue
		}
		switch onLink := suite.Config.Underlay.OnLink(suite.Place(m.node), suite.Place(peer.node)); {
		case onLink && direct():
			s.Routes = append(s.Routes, fmt.Sprintf("%s via %s dev eth0", peer.cidrs[f], peer.node.Addrs.In(f)))
		case tunnels():
			s.FDB = append(s.FDB, fmt.Sprintf("%s dst %s self permanent", peer.macs[f], peer.node.Addrs.In(f)))
			s.Neighbours = append(s.Neighbours, fmt.Sprintf("%s lladdr %s PERMANENT", peer.vtep(f), peer.macs[f]))
			s.Routes = append(s.Routes, fmt.Sprintf("%s via %s dev %s onlink", peer.cidrs[f], peer.vtep(f), device(f)))
		}
	}
	return s.sorted()
}

// direct reports whether packets to a peer on the own network go without a tunnel.
func direct() bool {
	var backend struct{ DirectRouting bool }
	_ = json.Unmarshal([]byte(suite.Config.Backend), &backend) // empty says nothing
	return !tunnels() || backend.DirectRouting
}
