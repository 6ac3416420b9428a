package traffic

import (
	"net/netip"
	"testing"

	"github.com/weft-cni/weft/backend/netfilter"
)

func TestM03OnlyConnectionsThatMasqueradeMissedBeginAnew(t *testing.T) {
	at := netip.MustParseAddr
	flow := func(src, dst string) netfilter.Connection {
		return netfilter.Connection{
			Original: netfilter.Tuple{Src: at(src), Dst: at(dst)}, Reply: netfilter.Tuple{Src: at(dst), Dst: at(src)},
		}
	}
	translated, service, answered := flow("10.244.1.5", "198.51.100.1"), flow("10.244.1.5", "10.96.0.10"), flow("10.244.1.5", "198.51.100.1")
	translated.Reply.Dst, service.Reply.Src, answered.Answered = at("192.168.50.1"), at("10.244.2.7"), true
	kept, off := cluster(), cluster()
	kept.Nets[0].KeepSource, off.Masquerade = true, false
	for _, tc := range []struct {
		name string
		c    Config
		x    netfilter.Connection
		want bool
	}{
		{"pod to the outside", cluster(), flow("10.244.1.5", "198.51.100.1"), true},
		{"the same in IPv6", cluster(), flow("fd00:244:0:1::5", "2001:db8::1"), true},
		{"translated", cluster(), translated, false},
		{"answered", cluster(), answered, false},
		{"to a Service of pods", cluster(), service, false},
		{"to a pod", cluster(), flow("10.244.1.5", "10.244.2.7"), false},
		{"to an excluded destination", cluster(), flow("10.244.1.5", "192.0.2.10"), false},
		{"multicast", cluster(), flow("10.244.1.5", "224.0.0.251"), false},
		{"the host to the outside", cluster(), flow("192.168.50.1", "198.51.100.1"), false},
		{"the host to a pod elsewhere", cluster(), flow("192.168.50.1", "10.244.2.7"), true},
		{"a client to a pod here", cluster(), flow("198.51.100.1", "10.244.1.5"), false},
		{"a family that keeps its addresses", kept, flow("10.244.1.5", "198.51.100.1"), false},
		{"no masquerade", off, flow("10.244.1.5", "198.51.100.1"), false},
	} {
		if got := tc.c.isBare(tc.x); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
