package policy_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weft-cni/weft/backend/policy"
)

// talks opens conversations of pod a and of the host outside with pod b, in every way that a policy meets.
func (s *site) talks(base uint16) []*talk {
	s.service("b")
	var out []*talk
	for i, network := range []string{"tcp", "udp"} {
		for k, to := range []string{podAddr("b").String(), clusterAddr, clusterLong} {
			at := netip.AddrPortFrom(podAddr("b"), base+uint16(10*i+k))
			if to == clusterLong {
				at = netip.AddrPortFrom(podAddrLong("b"), at.Port())
			}
			out = append(out, s.talk(network, s.pods["a"], s.pods["b"], netip.MustParseAddr(to), at))
		}
	}
	return out
}

// aWhileOfTalk is how many messages both ends go on to send: a second and a half, in which TCP sends again several times.
const aWhileOfTalk = 150

func TestConnectionsThatAreNoLongerAllowedAreCutInBothDirections(t *testing.T) { // N-15
	for _, c := range []struct {
		name   string
		policy *policy.NetworkPolicy
	}{
		{"ingress of the server", isolate(policy.Ingress, "b", with([]string{"c"}))},
		{"egress of the client", isolate(policy.Egress, "a", with([]string{"c"}))},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			talks := s.talks(5000)
			stays := s.talk("udp", s.pods["c"], s.pods["b"], podAddr("b"), netip.AddrPortFrom(podAddr("b"), 6000))
			also := s.talk("tcp", s.pods["c"], s.pods["b"], podAddr("b"), netip.AddrPortFrom(podAddr("b"), 6001))
			s.world.Policies = []*policy.NetworkPolicy{c.policy}
			before, err := s.m.Forbidden(s.world)
			if err != nil || len(before) != len(talks) || !slices.Equal(before[0].Policies, []string{c.policy.Key()}) {
				t.Errorf("an audit lists %+v, %v; want %d connections, by %s", before, err, len(talks), c.policy.Key())
			}
			if res := s.sync(c.policy); len(res.Cut) != len(talks) {
				t.Errorf("cut: %v", res.Cut)
			}
			heard := goOn(t, aWhileOfTalk, append(talks, stays, also)...)
			for i, tk := range talks {
				if heard[i] != [2]int{} {
					t.Errorf("%s goes on: %v messages were heard that were sent after the cut", tk.name, heard[i])
				}
			}
			for i := len(talks); i < len(heard); i++ {
				if heard[i][0] < aWhileOfTalk/2 || heard[i][1] < aWhileOfTalk/2 {
					t.Errorf("a connection that is allowed suffers: %v of %d messages", heard[i], aWhileOfTalk)
				}
			}
			s.sync() // and nothing keeps UDP from going on, once it may
			for i, heard := range goOn(t, aWhileOfTalk, talks...) {
				if talks[i].name[:3] == "udp" && (heard[0] == 0 || heard[1] == 0) {
					t.Errorf("%s stays cut although it is allowed again: %v", talks[i].name, heard)
				}
			}
		})
	}
}

func TestConnectionsGoOnWhenTheyAreJudgedAtSetUpOnly(t *testing.T) { // N-15
	s := newSite(t)
	talks := s.talks(5000)
	s.syncWith(policy.Config{KeepEstablished: true}, isolate(policy.Ingress, "b"))
	for i, heard := range goOn(t, 50, talks...) {
		if heard[0] == 0 || heard[1] == 0 {
			t.Errorf("%s was cut: %v", talks[i].name, heard)
		}
	}
	s.pods["b"].UDPEcho(netip.AddrPortFrom(podAddr("b"), servicesPort))
	s.expect("a new connection is judged", false, s.pods["a"], podAddr("b").String())
}

func TestWhatAPodSendsItsOwnNodeIsUpToClusterPoliciesOnly(t *testing.T) {
	s := newSite(t)
	s.echoes()
	s.node.UDPEcho(netip.MustParseAddrPort("[" + nodeLong + "]:80"))
	s.service("b")
	node := netip.MustParseAddr(nodeAddr)
	talks := []*talk{
		s.talk("tcp", s.pods["a"], s.node, node, netip.AddrPortFrom(node, 5000)),
		s.talk("udp", s.pods["a"], s.node, node, netip.AddrPortFrom(node, 5001)),
		s.talk("tcp", s.node, s.pods["a"], podAddr("a"), netip.AddrPortFrom(podAddr("a"), 5002)),
	}
	s.sync(isolate(policy.Egress, "a"))
	s.expect("NetworkPolicy", true, s.pods["a"], nodeAddr, nodeLong)
	deny := &policy.ClusterPolicy{Name: "no-node", Subject: policy.Peer{Namespaces: &policy.Selector{}, Pods: named("a")}}
	deny.Rules[policy.Egress] = []policy.Rule{{Action: policy.Deny, AllPorts: true, Peers: []policy.Peer{{Nodes: &policy.Selector{}}}}}
	s.world.Cluster = []*policy.ClusterPolicy{deny}
	s.world.Nodes = []*policy.Node{{Name: "node", Addrs: []netip.Addr{node, netip.MustParseAddr(nodeLong)}}}
	if res := s.sync(); len(res.Cut) < 2 {
		t.Errorf("cut: %v", res.Cut)
	}
	s.expect("ClusterNetworkPolicy", false, s.pods["a"], nodeAddr, nodeLong)
	s.expect("others", true, s.pods["b"], nodeAddr, nodeLong)
	s.expect("the node to the pod", true, s.node, both("a")...)
	for i, heard := range goOn(t, aWhileOfTalk, talks...) {
		if went := heard != [2]int{}; went != (i == 2) {
			t.Errorf("%s: %v", talks[i].name, heard)
		}
	}
	s.world.Cluster = nil
	s.sync()
	s.expect("allowed again", true, s.pods["a"], nodeAddr, nodeLong)
	if heard := goOn(t, 50, talks[1]); heard[0][0] == 0 || heard[0][1] == 0 {
		t.Errorf("%s stays cut: %v", talks[1].name, heard)
	}
}
