package policy_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/tests/nstest"
	"github.com/weft-cni/weft/tests/sctp"
)

// sctpPorts are those on which every pod of the site answers.
var sctpPorts = []uint16{5000, 5001}

// TestSCTPConnectionsFareAsPoliciesSay has the kernel's own SCTP at both ends, in both families: straight to a pod, and by a
// Service's address, which is judged by where it leads.
func TestSCTPConnectionsFareAsPoliciesSay(t *testing.T) { // N-10
	sctp.Need(t)
	s := newSite(t)
	for _, name := range podsOfSite {
		for _, a := range both(name) {
			for _, port := range sctpPorts {
				s.associate(s.pods[name], netip.AddrPortFrom(netip.MustParseAddr(a), port))
			}
		}
	}
	s.service("b")
	s.sync()
	s.speaks("no policy", "a", "b", 5000, true)
	s.sync(isolate(policy.Ingress, "b", with([]string{"c"}, port(policy.SCTP, 5000), port(policy.TCP, 5001))))
	s.speaks("not from this pod", "a", "b", 5000, false)
	s.speaks("allowed", "c", "b", 5000, true)
	s.speaks("another port, which TCP has", "c", "b", 5001, false)
	s.speaks("the other way", "b", "a", 5000, true)
	s.sync(isolate(policy.Egress, "a", with([]string{"c"}, policy.Port{Proto: policy.SCTP, First: 5000, Last: 5001})))
	s.speaks("a range of ports", "a", "c", 5001, true)
	s.speaks("to nobody else", "a", "b", 5000, false)
}

// associate lets a place of the site answer.
func (s *site) associate(at *nstest.NS, where netip.AddrPort) {
	s.t.Helper()
	var l *sctp.Listener
	err := at.Do(func() (err error) {
		l, err = sctp.Listen(where)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(l.Close)
}

// speaks checks who reaches whom by SCTP; b is tried by the Service's address, too.
func (s *site) speaks(what, from, to string, port uint16, want bool) {
	s.t.Helper()
	addrs := both(to)
	if to == "b" {
		addrs = append(addrs, clusterAddr, clusterLong)
	}
	for _, a := range addrs {
		server := netip.AddrPortFrom(netip.MustParseAddr(a), port)
		client := podAddrLong(from)
		if server.Addr().Is4() {
			client = podAddr(from)
		}
		err := s.trySCTP(s.pods[from], client, server, map[bool]int{true: 20, false: 1}[want])
		if (err == nil) != want {
			s.t.Errorf("%s: from %s to %s passes: %v (%v)\n%s", what, from, server, err == nil, err, s.node.NFT())
		}
	}
}

func (s *site) trySCTP(ns *nstest.NS, from netip.Addr, to netip.AddrPort, tries int) error {
	var err error
	for range tries {
		err = ns.Do(func() error {
			seen, err := sctp.Seen(from, to, time.Second)
			if err == nil && seen.Addr() != from {
				return fmt.Errorf("the server sees %s instead of %s", seen, from)
			}
			return err
		})
		if err == nil {
			return nil
		}
	}
	return err
}
