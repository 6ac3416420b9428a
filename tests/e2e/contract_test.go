package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/weft-cni/weft/tests/e2e/cluster"
)

const prefix = "flannel.alpha.coreos.com/"

// member is what the contract makes of one Node: what its peers must hold.
type member struct {
	node *cluster.Node
	cidr netip.Prefix
	mac  string // from the annotation
}

// vtep is the address of the node's flannel.1: the network address of its pod range.
func (m member) vtep() string { return m.cidr.Addr().String() }

// members reads the Nodes as a peer would.
func members(t *testing.T) []member {
	t.Helper()
	var all []member
	for i, n := range nodeObjects(t) {
		var data struct{ VtepMAC string }
		if err := json.Unmarshal([]byte(n.Metadata.Annotations[prefix+"backend-data"]), &data); err != nil {
			t.Fatalf("%s: backend-data: %v", n.Metadata.Name, err)
		}
		cidr, err := netip.ParsePrefix(n.Spec.PodCIDR)
		must(t, err)
		all = append(all, member{node: suite.Node(i + 1), cidr: cidr, mac: data.VtepMAC})
	}
	return all
}

func TestTheAnnotationsAreFlannels(t *testing.T) {
	withProduct(t)
	for i, n := range nodeObjects(t) {
		mac := onHost(t, suite.Node(i+1).Machine, "cat", "/sys/class/net/flannel.1/address")
		want := map[string]string{
			prefix + "kube-subnet-manager": "true",
			prefix + "backend-type":        "vxlan",
			prefix + "public-ip":           suite.Node(i + 1).IP,
			prefix + "backend-data":        fmt.Sprintf(`{"VNI":1,"VtepMAC":"%s"}`, mac),
		}
		got := map[string]string{}
		for key := range want {
			got[key] = n.Metadata.Annotations[key]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", n.Metadata.Name, diff)
		}
	}
}

func TestSubnetEnvIsFlannelsByteForByte(t *testing.T) {
	withProduct(t)
	for _, m := range members(t) {
		got, err := os.ReadFile(m.node.Path("/run/flannel/subnet.env"))
		must(t, err)
		want := fmt.Sprintf("FLANNEL_NETWORK=%s\nFLANNEL_SUBNET=%s/%d\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
			suite.Config.PodCIDR, m.cidr.Addr().Next(), m.cidr.Bits())
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", m.node.Name, diff)
		}
	}
}

func TestTheDeviceIsAsTheContractSays(t *testing.T) {
	withProduct(t)
	for _, m := range members(t) {
		text := onHost(t, m.node.Machine, "ip", "-d", "addr", "show", "flannel.1")
		for _, want := range []string{
			"mtu 1450", "UP", "link/ether " + m.mac, "vxlan id 1 local " + m.node.IP + " dev eth0", "dstport 4789", "nolearning",
			"ttl auto", "ageing 300", "udpcsum", "noudp6zerocsumtx", "noudp6zerocsumrx", "inet " + m.vtep() + "/32 scope global flannel.1",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", m.node.Name, want, text)
			}
		}
	}
}

// peerState is what a node's kernel holds for its peers, as iproute2 prints it, sorted.
func peerState(t *testing.T, m cluster.Machine) (fdb, neighbours, routes []string) {
	t.Helper()
	lines := func(args ...string) []string {
		out, err := m.Exec(t.Context(), args...)
		if err != nil {
			return []string{err.Error()} // no device, say
		}
		var all []string
		for line := range strings.Lines(out) {
			line = strings.Join(strings.Fields(line), " ")
			if !strings.HasPrefix(line, "33:33:") && !strings.HasPrefix(line, "fe80:") && !strings.HasPrefix(line, "ff02:") {
				all = append(all, line)
			}
		}
		slices.Sort(all)
		return all
	}
	for _, route := range lines("ip", "route", "show", "dev", "flannel.1") {
		route, _, _ = strings.Cut(strings.Replace(route, " proto 87", "", 1), " linkdown")
		routes = append(routes, route)
	}
	return lines("bridge", "fdb", "show", "dev", "flannel.1"), lines("ip", "neigh", "show", "dev", "flannel.1"), routes
}

// wantedState is what m must hold for the others.
func wantedState(m member, all []member) (fdb, neighbours, routes []string) {
	for _, peer := range all {
		if peer.node.Name == m.node.Name {
			continue
		}
		fdb = append(fdb, fmt.Sprintf("%s dst %s self permanent", peer.mac, peer.node.IP))
		neighbours = append(neighbours, fmt.Sprintf("%s lladdr %s PERMANENT", peer.vtep(), peer.mac))
		routes = append(routes, fmt.Sprintf("%s via %s onlink", peer.cidr, peer.vtep()))
	}
	for _, list := range [][]string{fdb, neighbours, routes} {
		slices.Sort(list)
	}
	return fdb, neighbours, routes
}

// differences compares what the nodes' kernels hold with what the Nodes say; empty when they agree.
func differences(t *testing.T, all []member) string { return differencesOn(t, all, all) }

// differencesOn is differences for some of the nodes.
func differencesOn(t *testing.T, some, all []member) string {
	t.Helper()
	var out strings.Builder
	for _, m := range some {
		fdb, neighbours, routes := wantedState(m, all)
		gotFDB, gotNeighbours, gotRoutes := peerState(t, m.node.Machine)
		for what, lists := range map[string][2][]string{
			"FDB": {fdb, gotFDB}, "neighbours": {neighbours, gotNeighbours}, "routes": {routes, gotRoutes},
		} {
			if diff := cmp.Diff(lists[0], lists[1]); diff != "" {
				fmt.Fprintf(&out, "%s, %s (-want +got):\n%s", m.node.Name, what, diff)
			}
		}
	}
	return out.String()
}

// agree waits until the kernels hold exactly what the Nodes say.
func agree(t *testing.T, limit time.Duration, all []member) time.Duration {
	t.Helper()
	return eventually(t, limit, "every kernel matches the Nodes", func() error {
		if diff := differences(t, all); diff != "" {
			return fmt.Errorf("%s", diff)
		}
		return nil
	})
}

func TestTheKernelsHoldExactlyTheirPeers(t *testing.T) {
	withProduct(t)
	agree(t, 5*time.Second, members(t))
}

func TestTheRulesAreOneTableOfOurs(t *testing.T) {
	withProduct(t)
	for _, n := range suite.Nodes() {
		tables := onHost(t, n.Machine, "nft", "list", "tables")
		if !strings.Contains(tables, "table inet weft") || strings.Contains(tables, "flannel") {
			t.Errorf("%s: tables are\n%s", n.Name, tables)
		}
		table := onHost(t, n.Machine, "nft", "list", "table", "inet", "weft")
		for _, want := range []string{"masquerade", "notrack"} {
			if !strings.Contains(table, want) {
				t.Errorf("%s: no %q in\n%s", n.Name, want, table)
			}
		}
	}
}

func TestTunnelPacketsBypassConnectionTracking(t *testing.T) {
	pods := podOnEachNode(t)
	if _, err := pods[0].exec(t, "ping", "-c", "2", "-i", "0.1", pods[1].IP); err != nil {
		t.Error(err)
	}
	for _, n := range suite.Nodes()[:2] {
		if out := onHost(t, n.Machine, "conntrack", "-L", "-p", "udp", "--dport", "4789"); out != "" {
			t.Errorf("%s tracks the tunnel:\n%s", n.Name, out)
		}
	}
}

func TestTheConflistChainsFlannelPortmapAndBandwidth(t *testing.T) {
	withProduct(t)
	for _, n := range suite.Nodes() {
		text, err := os.ReadFile(n.Path("/etc/cni/net.d/10-flannel.conflist"))
		must(t, err)
		var list struct {
			Name    string
			Plugins []struct{ Type string }
		}
		must(t, json.Unmarshal(text, &list))
		var types []string
		for _, p := range list.Plugins {
			types = append(types, p.Type)
		}
		if want := []string{"flannel", "portmap", "bandwidth"}; list.Name != "cbr0" || !slices.Equal(types, want) {
			t.Errorf("%s: %s chains %v", n.Name, list.Name, types)
		}
	}
}
