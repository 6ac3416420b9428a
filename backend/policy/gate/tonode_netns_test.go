package gate_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weft-cni/weft/subnet/attach"
)

// N-03, N-11: a ClusterNetworkPolicy may keep pods from their node, and one that is held must not reach it before that is known. The
// node reaches the pod all the same.
func TestN03AHeldPodIsKeptFromItsNodeWhilePoliciesMayDoSo(t *testing.T) {
	n := newNode(t)
	pod := n.ns.Pod(1500, netip.MustParsePrefix("10.244.1.2/24"), netip.MustParsePrefix("fd00:244:1::2/64"))
	own, node := []string{"10.244.1.2", "fd00:244:1::2"}, []string{"10.244.1.1", "fd00:244:1::1"}
	reach := func(want bool) {
		t.Helper()
		for i := range own {
			n.must(n.ns.CanPing(netip.MustParseAddr(own[i])))
			if to := netip.MustParseAddr(node[i]); want {
				n.until("the pod reaches its node", func() bool { return pod.CanPing(to) == nil })
			} else if pod.CanPing(to) == nil {
				t.Errorf("%s is reached", to)
			}
		}
	}
	one := note("a", own...)
	n.shut(true)
	n.plugin(one)
	reach(true) // NetworkPolicies have no say
	n.gate.KeepFromNode(true)
	n.shut(true)
	reach(false)
	n.ns.SetNFT("flush chain inet weft-gate input")
	n.until("it is repaired", func() bool {
		n.gate.KeepFromNode(true)
		n.shut(true)
		return strings.Count(n.ns.Run("nft", "list", "chain", "inet", attach.TableName, "input"), "drop") == 2
	})
	n.stop()
	n.start() // a new agent leaves what stands until it knows better
	n.shut(true)
	reach(false)
	n.gate.KeepFromNode(false)
	n.shut(true)
	reach(true)
	if text := n.ns.NFT(); strings.Contains(text, "hook input") {
		t.Errorf("the chain is left:\n%s", text)
	}
	n.gate.KeepFromNode(true)
	n.shut(true)
	reach(false)
	n.knows("a")
	n.judged(worldOf(one))
	reach(true)
}
