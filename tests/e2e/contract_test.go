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
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/e2e/cluster"
	"github.com/weft-cni/weft/tests/lane"
)

const prefix = "flannel.alpha.coreos.com/"

// member is what the contract makes of one Node: what its peers must hold.
type member struct {
	node  *cluster.Node
	cidrs [2]netip.Prefix
	macs  [2]string // from the annotations; empty where the backend has no device
}

// vtep is the address of the node's device of a family: the network address of its pod range.
func (m member) vtep(f subnet.Family) string { return m.cidrs[f].Addr().String() }

// The keys of a family's annotations.
func publicIP(f subnet.Family) string    { return prefix + word(f, "public-ip", "public-ipv6") }
func backendData(f subnet.Family) string { return prefix + word(f, "backend-data", "backend-v6-data") }

// members reads the Nodes as a peer would.
func members(t *testing.T) []member {
	t.Helper()
	var all []member
	for i, n := range nodeObjects(t) {
		m := member{node: suite.Node(i + 1)}
		for _, text := range n.Spec.PodCIDRs {
			cidr, err := netip.ParsePrefix(text)
			must(t, err)
			m.cidrs[subnet.FamilyOf(cidr.Addr())] = cidr
		}
		for _, f := range families() {
			if !tunnels() {
				continue
			}
			var data struct{ VtepMAC string }
			if err := json.Unmarshal([]byte(n.Metadata.Annotations[backendData(f)]), &data); err != nil {
				t.Fatalf("%s: %s: %v", n.Metadata.Name, backendData(f), err)
			}
			m.macs[f] = data.VtepMAC
		}
		all = append(all, m)
	}
	return all
}

func TestTheAnnotationsAreFlannels(t *testing.T) {
	withProduct(t)
	ours := []string{prefix + "backend-port", prefix + "backend-also"}
	for i, n := range nodeObjects(t) {
		node := suite.Node(i + 1)
		want := map[string]string{
			prefix + "kube-subnet-manager": "true",
			prefix + "backend-type":        suite.Config.BackendType(),
		}
		for _, f := range families() {
			want[publicIP(f)] = node.Addrs.In(f)
			want[backendData(f)] = "null"
			if tunnels() {
				mac := onHost(t, node.Machine, "cat", "/sys/class/net/"+device(f)+"/address")
				want[backendData(f)] = fmt.Sprintf(`{"VNI":1,"VtepMAC":"%s"}`, mac)
			}
		}
		got := map[string]string{}
		for key, value := range n.Metadata.Annotations {
			if strings.HasPrefix(key, prefix) && !slices.Contains(ours, key) {
				got[key] = value
			}
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
		want := ""
		for _, f := range families() {
			want += fmt.Sprintf("%s=%s\n%s=%s/%d\n", word(f, "FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"), lane.Network(f),
				word(f, "FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"), m.cidrs[f].Addr().Next(), m.cidrs[f].Bits())
		}
		want += fmt.Sprintf("FLANNEL_MTU=%d\nFLANNEL_IPMASQ=true\n", podMTU())
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", m.node.Name, diff)
		}
	}
}

func TestTheDeviceIsAsTheContractSays(t *testing.T) {
	needsTunnel(t)
	withProduct(t)
	for _, m := range members(t) {
		for _, f := range subnet.Families() {
			if !suite.Config.Lane.Has(f) {
				if text, err := m.node.Exec(t.Context(), "ip", "link", "show", device(f)); err == nil {
					t.Errorf("%s has a device of a family that is off:\n%s", m.node.Name, text)
				}
				continue
			}
			text := onHost(t, m.node.Machine, "ip", "-d", "addr", "show", device(f))
			for _, want := range []string{
				fmt.Sprint("mtu ", underlayMTU-overhead(f)), "UP", "link/ether " + m.macs[f], "vxlan id 1 local " + m.node.Addrs.In(f) + " dev eth0",
				"dstport 4789", "nolearning", "ttl auto", "ageing 300", "udpcsum", "noudp6zerocsumtx", "noudp6zerocsumrx",
				word(f, "inet "+m.vtep(f)+"/32 scope global "+device(f), "inet6 "+m.vtep(f)+"/128 scope global"),
			} {
				if !strings.Contains(text, want) {
					t.Errorf("%s: no %q in\n%s", m.node.Name, want, text)
				}
			}
		}
	}
}

// differences compares what the nodes' kernels hold with what the Nodes say; empty when they agree.
func differences(t *testing.T, all []member) string { return differencesOn(t, all, all) }

// differencesOn is differences for some of the nodes.
func differencesOn(t *testing.T, some, all []member) string {
	t.Helper()
	var out strings.Builder
	for _, m := range some {
		for _, f := range families() {
			if diff := cmp.Diff(wantedState(m, all, f), stateOf(t, m.node.Machine, f)); diff != "" {
				fmt.Fprintf(&out, "%s, %v (-want +got):\n%s", m.node.Name, f, diff)
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
	wanted := []string{"masquerade"}
	if tunnels() {
		wanted = append(wanted, "notrack")
	}
	for _, n := range suite.Nodes() {
		tables := onHost(t, n.Machine, "nft", "list", "tables")
		if !strings.Contains(tables, "table inet weft") || strings.Contains(tables, "flannel") {
			t.Errorf("%s: tables are\n%s", n.Name, tables)
		}
		table := onHost(t, n.Machine, "nft", "list", "table", "inet", "weft")
		for _, want := range wanted {
			if !strings.Contains(table, want) {
				t.Errorf("%s: no %q in\n%s", n.Name, want, table)
			}
		}
	}
}

func TestTunnelPacketsBypassConnectionTracking(t *testing.T) {
	needsTunnel(t)
	pods := podOnEachNode(t)
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		if _, err := pods[0].exec(t, "ping", "-c", "2", "-i", "0.1", pods[1].Addrs.In(f)); err != nil {
			t.Error(err)
		}
		for _, n := range suite.Nodes()[:2] {
			if out := onHost(t, n.Machine, "conntrack", "-L", "-f", word(f, "ipv4", "ipv6"), "-p", "udp", "--dport", "4789"); out != "" {
				t.Errorf("%s tracks the tunnel:\n%s", n.Name, out)
			}
		}
	})
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
