package e2e

import (
	"net"
	"strings"
	"testing"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/e2e/cluster"
	"github.com/weft-cni/weft/tests/lane"
)

// families are those of the cluster, the one first that comes first in a Node's podCIDRs.
func families() []subnet.Family { return suite.Config.Lane.Families() }

// first is the family of a test that needs only one.
func first() subnet.Family { return suite.Config.Lane.First() }

// eachFamily runs a part of a test once for each family of the cluster.
func eachFamily(t *testing.T, do func(t *testing.T, f subnet.Family)) {
	t.Helper()
	for _, f := range families() {
		t.Run(f.String(), func(t *testing.T) { do(t, f) })
	}
}

// in is the pod under its address of a family.
func (p pod) in(f subnet.Family) pod {
	p.IP = p.Addrs.In(f)
	return p
}

// allIn is in for many.
func allIn(f subnet.Family, pods []pod) []pod {
	var all []pod
	for _, p := range pods {
		all = append(all, p.in(f))
	}
	return all
}

// web is the address of a page.
func web(host, port, page string) string {
	return "http://" + net.JoinHostPort(host, port) + "/" + page
}

// outside is an address of the host that is no node.
func outside(f subnet.Family) string { return cluster.OutsideAddrs().In(f) }

// word picks what differs between the families.
func word(f subnet.Family, ipv4, ipv6 string) string { return [2]string{ipv4, ipv6}[f] }

// prefixes are the pod networks of the cluster, or of one of its nodes.
func prefixes() []string {
	var all []string
	for _, f := range families() {
		all = append(all, lane.Network(f).String())
	}
	return all
}

// fromPods matches packets with a pod's own address as their source.
func fromPods() string { return "src net " + strings.Join(prefixes(), " or src net ") }

// device is the name of a family's tunnel device.
func device(f subnet.Family) string { return word(f, "flannel.1", "flannel-v6.1") }

// tunnels reports whether the cluster's backend has a device; without one, packets for pods lie on the underlay as they are.
func tunnels() bool { return suite.Config.BackendType() == "vxlan" }

// needsTunnel ends a test that is about the device where there is none.
func needsTunnel(t *testing.T) {
	t.Helper()
	if !tunnels() {
		t.Skipf("%s has no device: the lanes with vxlan run this", suite.Config.BackendType())
	}
}

// underlayMTU is that of the nodes' eth0.
const underlayMTU = 1500

// overhead is what vxlan puts around a packet of a family: 20 or 40 bytes of IP, 8 of UDP, 8 of VXLAN and 14 of Ethernet.
func overhead(f subnet.Family) int { return [2]int{50, 70}[f] }

// podMTU is the MTU of pods: what the widest header of a family in use leaves.
func podMTU() int {
	mtu := underlayMTU
	if !tunnels() {
		return mtu
	}
	for _, f := range families() {
		mtu = min(mtu, underlayMTU-overhead(f))
	}
	return mtu
}
