package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func TestAnInterruptedDumpIsReadAgainFiveTimesAtMost(t *testing.T) {
	reads := 0
	read := func(good int, err error) func() ([]int, error) {
		reads = 0
		return func() ([]int, error) {
			reads++
			if reads >= good {
				return []int{reads}, nil
			}
			return []int{0}, err
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	if got, err := consistent(ctx, "things", read(5, netlink.ErrDumpInterrupted)); err != nil || got[0] != 5 {
		t.Errorf("good at the fifth: %v, %v", got, err)
	}
	if got, err := consistent(ctx, "things", read(6, netlink.ErrDumpInterrupted)); !errors.Is(err, ErrInterrupted) || got != nil || reads != 5 {
		t.Errorf("good at the sixth: %v, %v after %d reads", got, err, reads)
	}
	if got, err := consistent(ctx, "things", read(2, unix.EPERM)); !errors.Is(err, unix.EPERM) || got != nil || !strings.HasPrefix(err.Error(), "list things") {
		t.Errorf("another error: %v, %v", got, err)
	}
	cancel()
	if _, err := consistent(ctx, "things", read(1, nil)); !errors.Is(err, context.Canceled) || reads != 0 {
		t.Errorf("after the end: %v after %d reads", err, reads)
	}
}

func TestAFamilyThatTheKernelLacksHasNoEntries(t *testing.T) {
	for _, missing := range []error{unix.EAFNOSUPPORT, unix.EOPNOTSUPP} {
		got, err := byFamily(t.Context(), "things", func(family int) ([]int, error) {
			if family == unix.AF_INET6 {
				return nil, missing
			}
			return []int{family}, nil
		})
		if err != nil || len(got) != 1 {
			t.Errorf("%v: %v, %v", missing, got, err)
		}
	}
	if _, err := byFamily(t.Context(), "things", func(int) ([]int, error) { return nil, unix.EPERM }); !errors.Is(err, unix.EPERM) {
		t.Error(err)
	}
}

func TestD06AKernelWithoutVXLANIsSaidInPlainWordsWithTheCure(t *testing.T) {
	err := (&Conn{}).explainLink(Op{}, fmt.Errorf("link add: %w", unix.EOPNOTSUPP))
	if !errors.Is(err, ErrNoVXLAN) || !errors.Is(err, unix.EOPNOTSUPP) {
		t.Error(err)
	}
	for _, want := range []string{"kernel has no vxlan support", "modprobe vxlan", "linux-modules-extra"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	if err := (&Conn{}).explainLink(Op{}, unix.EPERM); err != unix.EPERM { //nolint:errorlint // as it came
		t.Error(err)
	}
}

func TestD06AKernelWithoutAKindIsSaidInPlainWordsWithTheCure(t *testing.T) {
	for kind, words := range map[string][]string{
		KindWireGuard: {"no wireguard support", "modprobe wireguard", "linux-modules-extra"},
		KindIPIP:      {"IP in IP", "modprobe ipip", "linux-modules-extra"},
		KindIP6Tnl:    {"IP in IP", "modprobe ip6_tunnel", "linux-modules-extra"},
	} {
		err := (&Conn{}).explainLink(Op{Link: Link{Kind: kind}}, unix.EOPNOTSUPP)
		for _, want := range words {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: no %q in %v", kind, want, err)
			}
		}
	}
	if err := explainWireGuard(fmt.Errorf("find family: %w", unix.ENOENT)); !errors.Is(err, ErrNoWireGuard) {
		t.Error(err)
	}
	if _, err := linkMessage(Op{Link: Link{Kind: "bond"}}); err == nil || !strings.Contains(err.Error(), `"bond"`) {
		t.Error(err)
	}
}

func TestAProbeTellsWhatItKnows(t *testing.T) {
	for _, test := range []struct {
		err, yes error
		want     string
	}{
		{nil, nil, "supported"}, {unix.ERANGE, unix.ERANGE, "supported"}, {unix.EOPNOTSUPP, unix.ERANGE, "not supported"},
		{unix.EPERM, unix.ERANGE, "cannot tell"}, {unix.EPERM, nil, "cannot tell"},
	} {
		f := finding("x", test.err, test.yes)
		if f.Support.String() != test.want || (f.Support == Supported) != (f.Err == nil) {
			t.Errorf("%v: %s, %v", test.err, f.Support, f.Err)
		}
	}
}

// message writes a notification: a fixed part with an index where links, addresses and neighbours have it.
func message(size, index int, change func(b []byte), attrs ...*nl.RtAttr) []byte {
	b := make([]byte, size)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	if change != nil {
		change(b)
	}
	for _, a := range attrs {
		b = append(b, a.Serialize()...)
	}
	return b
}

func TestNotificationsConcernWhoTheyConcern(t *testing.T) {
	const ours, other = 7, 8
	name := func(s string) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(s)) }
	kind := func(s string) *nl.RtAttr {
		a := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		a.AddRtAttr(nl.IFLA_INFO_KIND, nl.ZeroTerminated(s))
		return a
	}
	master := nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(3))
	oif := func(i uint32) *nl.RtAttr { return nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(i)) }
	route := func(table, protocol byte) func(b []byte) {
		return func(b []byte) { b[4], b[5], b[6], b[7] = table, protocol, 0, 0 }
	}
	bridge := func(b []byte) { b[0] = unix.AF_BRIDGE }
	for _, test := range []struct {
		name string
		kind uint16
		body []byte
		want change
	}{
		{"our device by index", unix.RTM_DELLINK, message(16, ours, nil), changeOurs},
		{"our device by name", unix.RTM_NEWLINK, message(16, other, nil, name("flannel.1"), kind("vxlan")), changeOurs},
		{"a host's device", unix.RTM_NEWLINK, message(16, other, nil, name("eth0")), changeHost},
		{"a pod's device", unix.RTM_NEWLINK, message(16, other, nil, name("veth1"), kind("veth"), master), changeNone},
		{"a veth that is no pod's", unix.RTM_NEWLINK, message(16, other, nil, name("eth0"), kind("veth")), changeHost},
		{"a bridge about its port", unix.RTM_NEWLINK, message(16, other, bridge, name("veth1")), changeNone},
		{"a link of nonsense", unix.RTM_NEWLINK, append(message(16, other, nil), 1, 0, 1), changeHost},
		{"an address of ours", unix.RTM_DELADDR, message(8, ours, nil), changeOurs},
		{"an address of the host", unix.RTM_NEWADDR, message(8, other, nil), changeHost},
		{"a neighbour of ours", unix.RTM_DELNEIGH, message(12, ours, nil), changeOurs},
		{"a pod's neighbour", unix.RTM_NEWNEIGH, message(12, other, nil), changeNone},
		{"a route by device", unix.RTM_DELROUTE, message(12, 0, route(unix.RT_TABLE_MAIN, 3), oif(ours)), changeOurs},
		{"a route by protocol", unix.RTM_DELROUTE, message(12, 0, route(unix.RT_TABLE_MAIN, Protocol), oif(other)), changeOurs},
		{"a route of the host", unix.RTM_NEWROUTE, message(12, 0, route(unix.RT_TABLE_MAIN, 3), oif(other)), changeHost},
		{"another table", unix.RTM_NEWROUTE, message(12, 0, route(unix.RT_TABLE_LOCAL, 2), oif(ours)), changeNone},
		{"a route of nonsense", unix.RTM_NEWROUTE, append(message(12, 0, route(unix.RT_TABLE_MAIN, 3)), 1, 0, 1), changeHost},
		{"a policy rule", unix.RTM_NEWRULE, message(12, 0, nil), changeHost},
		{"something else", unix.RTM_NEWQDISC, message(12, ours, nil), changeNone},
		{"too short", unix.RTM_NEWLINK, make([]byte, 4), changeNone},
	} {
		if got := classify(test.kind, test.body, func(i int) bool { return i == ours }); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

func TestRoutesOfManyFormsAreRead(t *testing.T) {
	names := map[int]string{7: "flannel.1"}
	dst := &net.IPNet{IP: net.IPv4(10, 244, 2, 0), Mask: net.CIDRMask(24, 32)}
	for _, test := range []struct {
		name  string
		route netlink.Route
		want  string // empty when it is not ours
	}{
		{"ours", netlink.Route{Dst: dst, LinkIndex: 7, Protocol: Protocol, Type: unix.RTN_UNICAST, Gw: net.IPv4(10, 244, 2, 0)},
			"10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87"},
		{"flannel's", netlink.Route{Dst: dst, LinkIndex: 7, Protocol: unix.RTPROT_BOOT, Type: unix.RTN_UNICAST}, "10.244.2.0/24 dev flannel.1"},
		{"on two ways", netlink.Route{Dst: dst, Type: unix.RTN_UNICAST, MultiPath: []*netlink.NexthopInfo{{LinkIndex: 7}, {LinkIndex: 3}}},
			"10.244.2.0/24 dev flannel.1 and 1 more"},
		{"ours on another device", netlink.Route{Dst: dst, LinkIndex: 3, Protocol: Protocol, Type: unix.RTN_UNICAST}, "10.244.2.0/24 dev eth1 proto 87"},
		{"of an unknown type", netlink.Route{Dst: dst, LinkIndex: 7, Protocol: Protocol, Type: 77}, "type-77 10.244.2.0/24 dev flannel.1 proto 87"},
		{"the kernel's", netlink.Route{Dst: dst, LinkIndex: 7, Protocol: unix.RTPROT_KERNEL, Type: unix.RTN_UNICAST}, ""},
		{"somebody's", netlink.Route{Dst: dst, LinkIndex: 3, Protocol: unix.RTPROT_BOOT, Type: unix.RTN_UNICAST}, ""},
		{"by type of service", netlink.Route{Dst: dst, LinkIndex: 7, Tos: 4, Type: unix.RTN_UNICAST}, ""},
		{"without destination", netlink.Route{LinkIndex: 7, Type: unix.RTN_UNICAST}, ""},
	} {
		got := ""
		if r := readRoute(test.route, names); r.ours {
			got = routeText(r.key, (&Conn{}).named(r, map[int]string{3: "eth1"}).value)
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestNonsenseFromTheNeighbourTableIsLeftOut(t *testing.T) {
	names := map[int]string{7: "flannel.1"}
	for name, b := range map[string][]byte{
		"too short": make([]byte, 8), "another device": message(12, 8, nil), "broken attributes": append(message(12, 7, nil), 1, 0, 1, 0, 9),
	} {
		if e, ok := parseNeigh(b, names); ok {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

func TestRulesBeyondThoseOfEveryNamespaceAreCounted(t *testing.T) {
	rule := func(priority, table int) netlink.Rule { return netlink.Rule{Priority: priority, Table: table} }
	standard := []netlink.Rule{rule(0, 255), rule(32766, 254), rule(32767, 253), rule(0, 255), rule(32766, 254)}
	if n := extraRules(standard); n != 0 {
		t.Errorf("%d of the standard rules", n)
	}
	if n := extraRules(append(standard, rule(100, 77), rule(32766, 77))); n != 2 {
		t.Errorf("%d of two extra rules", n)
	}
}
