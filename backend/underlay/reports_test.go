package underlay

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet"
)

func TestI01ASharedAddressIsFoundAndTheInternalIPAvoidsIt(t *testing.T) {
	h := host(t, twoNICs) // eth0 is 10.0.2.15 on every node
	first, err := Pick(Options{}, h)
	if err != nil {
		t.Fatal(err)
	}
	peers := subnet.Snapshot{Peers: []subnet.Peer{
		{Name: "n2", Endpoints: [2]subnet.Endpoint{{PublicIP: ip("10.0.2.15")}}},
		{Name: "n3", Endpoints: [2]subnet.Endpoint{{PublicIP: ip("10.0.2.15")}, {PublicIP: ip("fd00::3")}}},
		{Name: "n4", Endpoints: [2]subnet.Endpoint{{PublicIP: ip("10.0.2.16")}}},
	}}
	err = Duplicate(first, peers)
	want := "announce 10.0.2.15: already announced by n2, n3; choose another address with --iface or " +
		"--iface-from=internal-ip, or go on with --allow-shared-public-ip: address announced twice"
	if err == nil || !errors.Is(err, subnet.ErrAddressTaken) || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	cured, err := Pick(Options{From: FromInternalIP, InternalIP: ip("192.168.0.11")}, h)
	if err != nil || Duplicate(cured, peers) != nil {
		t.Errorf("picked %v, %v: still a duplicate", cured.Announced, err)
	}
	if err := Duplicate(Underlay{Announced: ip("fd00::3")}, peers); !errors.Is(err, subnet.ErrAddressTaken) {
		t.Errorf("IPv6 duplicate: %v", err)
	}
	if err := Duplicate(Underlay{}, peers); err != nil {
		t.Errorf("no address is no duplicate: %v", err)
	}
}

// Neither --iface nor the InternalIP changes what the operator wrote.
func TestI01ASharedAddressThatTheOperatorGaveIsCuredWhereHeGaveIt(t *testing.T) {
	peers := subnet.Snapshot{Peers: []subnet.Peer{
		{Name: "n2", Endpoints: [2]subnet.Endpoint{{PublicIP: ip("203.0.113.7")}, {PublicIP: ip("2001:db8::7")}}},
	}}
	for want, opt := range map[string]Options{
		"change --public-ip":                               {Iface: []string{"eth0"}, PublicIP: ip("203.0.113.7")},
		"change the Node's annotation node-public-ip":      {Iface: []string{"eth0"}, NodePublicIP: ip("203.0.113.7"), PublicIP: ip("203.0.113.9")},
		"change the Node's annotation public-ip-overwrite": {Overwrite: ip("203.0.113.7"), PublicIP: ip("10.0.2.15")},
	} {
		u, err := Pick(opt, host(t, twoNICs))
		if err != nil {
			t.Fatal(err)
		}
		want = "announce 203.0.113.7: already announced by n2; " + want + ", or go on with --allow-shared-public-ip: address announced twice"
		if err := Duplicate(u, peers); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	u, err := Pick(Options{Family: v6, Overwrite: ip("2001:db8::7")}, host(t, "link eth0\naddr eth0 fd00::b/64\nroute default6 via fe80::1 dev eth0\n"))
	if err := Duplicate(u, peers); err == nil || !strings.Contains(err.Error(), "change the Node's annotation public-ipv6-overwrite,") {
		t.Errorf("%v, for %+v", err, u)
	}
	if err != nil {
		t.Error(err)
	}
}

func TestI03ANATedPublicIPIsAnnouncedAndNeverLocal(t *testing.T) {
	for name, opt := range map[string]Options{
		"flag":                              {Iface: []string{"eth0"}, PublicIP: ip("203.0.113.7")},
		"annotation":                        {Iface: []string{"eth0"}, NodePublicIP: ip("203.0.113.7")},
		"overwrite":                         {Overwrite: ip("203.0.113.7")},
		"flag, by the Node's address":       {From: FromInternalIP, InternalIP: ip("10.0.2.15"), PublicIP: ip("203.0.113.7")},
		"annotation, by the Node's address": {From: FromInternalIP, InternalIP: ip("10.0.2.15"), NodePublicIP: ip("203.0.113.7")},
		"flag, by the default route":        {Iface: []string{""}, PublicIP: ip("203.0.113.7")}, // --iface=
	} {
		u, err := Pick(opt, host(t, twoNICs))
		if err != nil {
			t.Fatal(name, err)
		}
		if u.Addr != ip("10.0.2.15") || u.Announced != ip("203.0.113.7") {
			t.Errorf("%s: local %s, announced %s; want 10.0.2.15, 203.0.113.7", name, u.Addr, u.Announced)
		}
	}
}

// The matrix of report I-04: each way to say an address, with a local and a foreign one. The node's own public-ip
// annotation (Announced) is output: whatever it holds from the last run, the choice of the interface is the same.
func TestI04EveryCombinationOfPublicIPOptions(t *testing.T) {
	const (
		none     = "eth0 10.0.2.15"
		notLocal = "error"
	)
	tests := []struct {
		opt  string
		ip   [2]string // what is picked with a local (192.168.0.11), and with a foreign address (203.0.113.7)
		with func(addr netip.Addr) Options
	}{
		{"none", [2]string{none, none}, func(netip.Addr) Options { return Options{} }},
		{"node-public-ip", [2]string{"eth1 192.168.0.11", notLocal},
			func(a netip.Addr) Options { return Options{NodePublicIP: a} }},
		{"overwrite", [2]string{none + " announced 192.168.0.11", none + " announced 203.0.113.7"},
			func(a netip.Addr) Options { return Options{Overwrite: a} }},
		{"node-public-ip, overwrite", [2]string{"eth1 192.168.0.11", "eth1 192.168.0.11 announced 203.0.113.7"},
			func(a netip.Addr) Options { return Options{NodePublicIP: ip("192.168.0.11"), Overwrite: a} }},
		{"--public-ip", [2]string{"eth1 192.168.0.11", notLocal},
			func(a netip.Addr) Options { return Options{PublicIP: a} }},
		{"--public-ip, node-public-ip", [2]string{"eth1 192.168.0.11", notLocal},
			func(a netip.Addr) Options { return Options{PublicIP: ip("10.0.2.15"), NodePublicIP: a} }},
		{"--iface", [2]string{none, none}, func(netip.Addr) Options { return Options{Iface: []string{"eth0"}} }},
		{"--iface, --public-ip", [2]string{none + " public 192.168.0.11", none + " public 203.0.113.7"},
			func(a netip.Addr) Options { return Options{Iface: []string{"eth0"}, PublicIP: a} }},
		{"--iface, node-public-ip", [2]string{none + " public 192.168.0.11", none + " public 203.0.113.7"},
			func(a netip.Addr) Options { return Options{Iface: []string{"eth0"}, NodePublicIP: a} }},
		{"--iface, overwrite", [2]string{none + " announced 192.168.0.11", none + " announced 203.0.113.7"},
			func(a netip.Addr) Options { return Options{Iface: []string{"eth0"}, Overwrite: a} }},
		{"--iface, --public-ip, overwrite",
			[2]string{none + " public 198.51.100.1 announced 192.168.0.11", none + " public 198.51.100.1 announced 203.0.113.7"},
			func(a netip.Addr) Options {
				return Options{Iface: []string{"eth0"}, PublicIP: ip("198.51.100.1"), Overwrite: a}
			}},
	}
	// First start; restart with what was announced; the announced address is stale, of the other NIC or of nobody.
	announced := []string{"", "10.0.2.15", "192.168.0.11", "203.0.113.7", "10.99.0.1"}
	for _, tt := range tests {
		for i, given := range []string{"192.168.0.11", "203.0.113.7"} {
			for _, before := range announced {
				t.Run(tt.opt+"/"+given+"/announced "+before, func(t *testing.T) {
					opt := tt.with(ip(given))
					opt.Announced = ip(before)
					got := pick(t, opt, host(t, twoNICs))
					if tt.ip[i] == notLocal {
						got, _, _ = strings.Cut(got, ":")
					}
					if diff := cmp.Diff(tt.ip[i], got); diff != "" {
						t.Error(diff)
					}
				})
			}
		}
	}
}

func TestI04TheIPv6OptionsWorkTheSame(t *testing.T) {
	tests := map[string]struct {
		opt  Options
		want string
	}{
		"node-public-ipv6": {Options{NodePublicIP: ip("fd00:5::11")}, "eth1 fd00:5::11"},
		"--public-ipv6":    {Options{PublicIP: ip("fd00:5::11")}, "eth1 fd00:5::11"},
		"overwrite":        {Options{Overwrite: ip("2001:db8::7")}, "eth0 fd00:2::15 announced 2001:db8::7"},
		"NAT":              {Options{Iface: []string{"eth1"}, PublicIP: ip("2001:db8::7")}, "eth1 fd00:5::11 public 2001:db8::7"},
		"IPv4 overwrite":   {Options{Overwrite: ip("203.0.113.7")}, "eth0 fd00:2::15"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.opt.Family = v6
			if diff := cmp.Diff(tt.want, pick(t, tt.opt, host(t, twoNICs))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestI05AFloatingAddressIsNotAnnouncedByChance(t *testing.T) {
	base := "link eth0\nroute default via 10.0.0.1 dev eth0\n"
	tests := map[string]struct {
		text string
		opt  Options
		want string
	}{
		"a /32 VIP before the primary": {"addr eth0 10.0.0.100/32\naddr eth0 10.0.0.11/24", Options{}, "eth0 10.0.0.11"},
		"a secondary VIP in the subnet": {"addr eth0 10.0.0.11/24\naddr eth0 10.0.0.100/24 secondary", Options{},
			"eth0 10.0.0.11"},
		"the VIP was announced once": {"addr eth0 10.0.0.100/32\naddr eth0 10.0.0.11/24",
			Options{Announced: ip("10.0.0.100")}, "eth0 10.0.0.11"},
		"a permanent VIP beside DHCP": {"addr eth0 10.0.0.11/24 dynamic\naddr eth0 10.0.0.100/32", Options{},
			"eth0 10.0.0.11"},
		"another regular subnet first": {"addr eth0 10.9.0.1/24\naddr eth0 10.0.0.11/24", Options{}, "eth0 10.0.0.11"},
		"the InternalIP before all": {"addr eth0 10.0.0.11/24\naddr eth0 10.0.0.12/24 secondary",
			Options{InternalIP: ip("10.0.0.12"), Announced: ip("10.0.0.11")}, "eth0 10.0.0.12"},
		"an InternalIP elsewhere does not count": {"addr eth0 10.0.0.11/24", Options{InternalIP: ip("10.5.0.1")},
			"eth0 10.0.0.11"},
		"the announced one is kept": {"addr eth0 10.9.0.1/24\naddr eth0 10.0.0.11/24",
			Options{Announced: ip("10.9.0.1")}, "eth0 10.9.0.1"},
		"an announced one that has left is not": {"addr eth0 10.0.0.11/24", Options{Announced: ip("10.0.0.31")},
			"eth0 10.0.0.11"},
		"the VIP when named": {"addr eth0 10.0.0.11/24\naddr eth0 10.0.0.100/32",
			Options{Iface: []string{"10.0.0.100"}}, "eth0 10.0.0.100"},
		"a lone /32, as some clouds give": {"addr eth0 10.0.0.11/32", Options{}, "eth0 10.0.0.11"},
		"link-local last":                 {"addr eth0 169.254.3.4/16\naddr eth0 10.0.0.11/32", Options{}, "eth0 10.0.0.11"},
		"not a deprecated one":            {"addr eth0 10.0.0.10/24 deprecated\naddr eth0 10.0.0.11/24 secondary", Options{}, "eth0 10.0.0.11"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, pick(t, tt.opt, host(t, base+tt.text))); diff != "" {
				t.Error(diff)
			}
		})
	}
	preferred := "link eth0\naddr eth0 10.0.0.11/24\naddr eth0 10.0.0.12/24 secondary\n" +
		"route default via 10.0.0.1 dev eth0 src 10.0.0.12\n"
	if got := pick(t, Options{}, host(t, preferred)); got != "eth0 10.0.0.12" {
		t.Errorf("picked %s, want the preferred source of the default route", got)
	}
}

func TestI05TheIPv6AddressThatLastsIsTaken(t *testing.T) {
	base := "link eth0\nroute default6 via fe80::1 dev eth0\naddr eth0 fe80::2/64\n"
	tests := map[string]struct{ text, want string }{
		"not the privacy address":          {"addr eth0 fd00::a/64 dynamic temporary\naddr eth0 fd00::b/64 dynamic", "eth0 fd00::b"},
		"DHCPv6's /128, not privacy":       {"addr eth0 fd00::a/64 dynamic temporary\naddr eth0 fd00::b/128 dynamic", "eth0 fd00::b"},
		"the static one, not SLAAC":        {"addr eth0 fd00::a/64 dynamic\naddr eth0 fd00::b/64", "eth0 fd00::b"},
		"not a deprecated one":             {"addr eth0 fd00::a/64 deprecated\naddr eth0 fd00::b/64 dynamic", "eth0 fd00::b"},
		"not one that another machine has": {"addr eth0 fd00::a/64 dadfailed\naddr eth0 fd00::b/64 dynamic", "eth0 fd00::b"},
		"I-01 another machine has it": {"addr eth0 fd00::a/64 dadfailed", "error: pick the IPv6 underlay: default route: eth0 has fd00::a, and so has another machine on the link: " +
			"duplicate address detection failed, see dmesg: waiting for the host to have one"},
		"link-local is none": {"", "error: pick the IPv6 underlay: default route: eth0 has no IPv6 address but the link-local fe80::2, " +
			"which means nothing to other nodes: give it a global or a unique local one: waiting for the host to have one"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, pick(t, Options{Family: v6}, host(t, base+tt.text))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestI07ANewAddressIsPickedWhenTheOldOneHasLeft(t *testing.T) {
	before := "link eth0\nroute default via 10.0.0.1 dev eth0\naddr eth0 10.0.0.11/24\n"
	both := before + "addr eth0 10.0.0.31/24 secondary\n"
	after := strings.Replace(before, "10.0.0.11", "10.0.0.31", 1)
	opt := Options{Announced: ip("10.0.0.11")}
	for text, want := range map[string]string{before: "eth0 10.0.0.11", both: "eth0 10.0.0.11", after: "eth0 10.0.0.31"} {
		if got := pick(t, opt, host(t, text)); got != want {
			t.Errorf("picked %s, want %s, on\n%s", got, want, text)
		}
	}
}

func TestI09TheRegexPicksTheRightNIC(t *testing.T) {
	const text = `
		link lo
		link a
		link b
		link c
		link d
		addr a 10.1.0.1/24
		addr b 192.168.5.1/24
		addr b 192.168.6.1/24
		addr d 192.168.7.1/24
		addr d fd00:7::1/64
		addr b fd00:6::1/64
	`
	tests := map[string]struct {
		opt  Options
		want string
	}{
		"second address of b":                 {Options{IfaceRegex: []string{`^192\.168\.6\.`}}, "b 192.168.6.1"},
		"first address of b":                  {Options{IfaceRegex: []string{`192\.168\.`}}, "b 192.168.5.1"},
		"by name":                             {Options{IfaceRegex: []string{"^d$"}}, "d 192.168.7.1"},
		"by name, without an address":         {Options{IfaceRegex: []string{"^[cd]$"}}, "d 192.168.7.1"},
		"address match before name":           {Options{IfaceRegex: []string{"^a$|7"}}, "d 192.168.7.1"},
		"regexes in their order":              {Options{IfaceRegex: []string{"^x$", "^b$", "^a$"}}, "b 192.168.5.1"},
		"a later regex by address":            {Options{IfaceRegex: []string{"^c$", `^10\.`}}, "a 10.1.0.1"},
		"the other family on its own":         {Options{Family: v6, IfaceRegex: []string{"^fd00:7:"}}, "d fd00:7::1"},
		"an IPv4 pattern alone settles IPv6":  {Options{Family: v6, IfaceRegex: []string{`192\.168\.6\.`}}, "b fd00:6::1"},
		"an IPv6 pattern alone settles IPv4":  {Options{IfaceRegex: []string{"^fd00:7:"}}, "d 192.168.7.1"},
		"IPv4 patterns for two kinds of host": {Options{Family: v6, IfaceRegex: []string{`^172\.`, `^192\.168\.7`}}, "d fd00:7::1"},
		"a pattern each, IPv4":                {Options{IfaceRegex: []string{`^192\.168\.6\.`, "^fd00:7:"}}, "b 192.168.6.1"},
		"a pattern each, IPv6":                {Options{Family: v6, IfaceRegex: []string{`^192\.168\.6\.`, "^fd00:7:"}}, "d fd00:7::1"},
		"a pattern each, IPv6 not there yet": {Options{Family: v6, IfaceRegex: []string{`^192\.168\.6\.`, "^fd00:8:"}},
			`error: pick the IPv6 underlay: --iface-regex=^192\.168\.6\.: no interface has a matching address or name; ` +
				`--iface-regex=^fd00:8:: no interface has a matching address or name: waiting for the host to have one`},
		"an IPv4 pattern of a device without IPv6": {Options{Family: v6, IfaceRegex: []string{`^10\.1\.`}},
			`error: pick the IPv6 underlay: --iface-regex=^10\.1\.: no interface has a matching address or name: waiting for the host to have one`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, pick(t, tt.opt, host(t, text))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestI07ANewIPv6AddressIsPickedWhenTheOldOneHasLeft(t *testing.T) {
	before := "link eth0\nroute default6 via fe80::1 dev eth0\naddr eth0 fe80::2/64\naddr eth0 fd00::11/64\n"
	both := before + "addr eth0 fd00::31/64\n"
	old := "link eth0\nroute default6 via fe80::1 dev eth0\naddr eth0 fd00::11/64 deprecated\naddr eth0 fd00::31/64\n"
	after := strings.Replace(before, "fd00::11", "fd00::31", 1)
	opt := Options{Family: v6, Announced: ip("fd00::11")}
	for text, want := range map[string]string{before: "eth0 fd00::11", both: "eth0 fd00::11", old: "eth0 fd00::31", after: "eth0 fd00::31"} {
		if got := pick(t, opt, host(t, text)); got != want {
			t.Errorf("picked %s, want %s, on\n%s", got, want, text)
		}
	}
}

func TestI05AnIPv6VIPIsNotAnnouncedByChance(t *testing.T) {
	const base = "link eth0\nroute default6 via fe80::1 dev eth0\naddr eth0 fd00::100/128\naddr eth0 fd00::11/64\n"
	for name, opt := range map[string]Options{"at the start": {}, "announced once": {Announced: ip("fd00::100")}} {
		opt.Family = v6
		if got := pick(t, opt, host(t, base)); got != "eth0 fd00::11" {
			t.Errorf("%s: picked %s", name, got)
		}
	}
	for name, opt := range map[string]Options{"named": {Iface: []string{"fd00::100"}}, "the InternalIP": {InternalIP: ip("fd00::100")}} {
		opt.Family = v6
		if got := pick(t, opt, host(t, base)); got != "eth0 fd00::100" {
			t.Errorf("%s: picked %s", name, got)
		}
	}
}

func TestI11AnInterfaceThatIsNotThereIsWaitedForAndTakenWhenItComes(t *testing.T) {
	opt := Options{Iface: []string{"wg0"}}
	const base = "link lo\nlink eth0\naddr eth0 10.0.0.11/24\nroute default via 10.0.0.1 dev eth0\n"
	_, err := Pick(opt, host(t, base))
	if !errors.Is(err, ErrNotYet) {
		t.Fatalf("error %v, want ErrNotYet", err)
	}
	_, err = Pick(opt, host(t, base+"link wg0 mtu 1420\n"))
	if !errors.Is(err, ErrNotYet) || !strings.Contains(err.Error(), "wg0 has no usable IPv4 address") {
		t.Fatalf("error %v, want ErrNotYet for the address", err)
	}
	if got := pick(t, opt, host(t, base+"link wg0 mtu 1420\naddr wg0 10.8.0.1/32\n")); got != "wg0 10.8.0.1" {
		t.Errorf("picked %s", got)
	}
	// Re-created: the same name with another index.
	u, err := Pick(opt, host(t, base+"link x\nlink wg0 mtu 1420\naddr wg0 10.8.0.1/32\n"))
	if err != nil || u.Index != 4 {
		t.Errorf("index %d, %v; want 4", u.Index, err)
	}
	// With a fallback in the list, the reason says what is missing, and the better match wins when it comes.
	opt.Iface = append(opt.Iface, "eth0")
	u, err = Pick(opt, host(t, base))
	if err != nil || u.Link != "eth0" || !strings.Contains(u.Reason, "Passed over: --iface=wg0: no interface of that name") {
		t.Errorf("picked %s, %v, reason %s", u.Link, err, u.Reason)
	}
	if got := pick(t, opt, host(t, base+"link wg0 mtu 1420\naddr wg0 10.8.0.1/32\n")); got != "wg0 10.8.0.1" {
		t.Errorf("picked %s after the better match came", got)
	}
}

func TestI12AnAddressOfOneFamilySettlesTheInterfaceForTheOther(t *testing.T) {
	const apart = `
		link eth0
		addr eth0 10.0.0.11/24
		link eth1
		addr eth1 fd00:5::11/64
		addr eth1 fe80::2/64
		route 10.0.0.0/24 dev eth0
		route default6 via fe80::1 dev eth1
		link eth2
	`
	const yet = ": waiting for the host to have one"
	for name, c := range map[string]struct {
		opt  Options
		host string
		want string
	}{
		"IPv4's for IPv6":                 {Options{Family: v6, Iface: []string{"192.168.0.11"}}, twoNICs, "eth1 fd00:5::11"},
		"IPv6's for IPv4":                 {Options{Iface: []string{"fd00:5::11"}}, twoNICs, "eth1 192.168.0.11"},
		"with a public IP of the family":  {Options{Family: v6, Iface: []string{"192.168.0.11"}, PublicIP: ip("fd00:5::11")}, twoNICs, "eth1 fd00:5::11"},
		"a public IP each, IPv4":          {Options{PublicIP: ip("192.168.0.11")}, twoNICs, "eth1 192.168.0.11"},
		"a public IP each, IPv6":          {Options{Family: v6, PublicIP: ip("fd00:2::15")}, twoNICs, "eth0 fd00:2::15"},
		"an address each, IPv4":           {Options{Iface: []string{"192.168.0.11", "fd00:2::15"}}, twoNICs, "eth1 192.168.0.11"},
		"an address each, IPv6":           {Options{Family: v6, Iface: []string{"192.168.0.11", "fd00:2::15"}}, twoNICs, "eth0 fd00:2::15"},
		"a name each, IPv4":               {Options{Iface: []string{"eth0", "eth1"}}, apart, "eth0 10.0.0.11"},
		"a name each, IPv6":               {Options{Family: v6, Iface: []string{"eth0", "eth1"}}, apart, "eth1 fd00:5::11"},
		"IPv6 has a device of its own":    {Options{Family: v6, Iface: []string{"10.0.0.11"}}, apart, "eth1 fd00:5::11"},
		"by the way to a host of IPv4":    {Options{Family: v6, CanReach: "192.168.0.99"}, twoNICs, "eth1 fd00:5::11"},
		"by the way to an IPv6 neighbour": {Options{CanReach: "fd00:5::99"}, twoNICs + "route fd00:5::/64 dev eth1", "eth1 192.168.0.11"},
		"that way has no IPv6":            {Options{Family: v6, CanReach: "10.0.0.99"}, apart, "eth1 fd00:5::11"},
		"no IPv6 anywhere": {Options{Family: v6, Iface: []string{"10.0.0.11"}}, "link eth0\naddr eth0 10.0.0.11/24",
			"error: pick the IPv6 underlay: --iface=10.0.0.11: eth0 has no usable IPv6 address; default route: unable to find default route for IPv6 in the main table (set one, or name the interface with --iface)" + yet},
		"a device to come is waited for": {Options{Family: v6, Iface: []string{"10.0.0.12"}}, apart,
			"error: pick the IPv6 underlay: --iface=10.0.0.12: no interface has the address 10.0.0.12; default route: nothing is said of IPv6 but 10.0.0.12: no interface has the address 10.0.0.12" + yet},
		"a link-local address": {Options{Family: v6, Iface: []string{"fe80::2"}}, apart,
			`error: pick the IPv6 underlay: --iface=fe80::2: "fe80::2" is not an address that other nodes can send to: the options need a change`},
		"a link-local public address": {Options{Family: v6, PublicIP: ip("fe80::2")}, apart,
			`error: pick the IPv6 underlay: --public-ipv6: "fe80::2" is not an address that other nodes can send to: the options need a change`},
		"a name with a link-local address alone": {Options{Family: v6, Iface: []string{"eth2"}}, apart + "addr eth2 fe80::3/64",
			"error: pick the IPv6 underlay: --iface=eth2: eth2 has no IPv6 address but the link-local fe80::3, which means nothing to other nodes: give it a global or a unique local one" + yet},
	} {
		if diff := cmp.Diff(c.want, pick(t, c.opt, host(t, c.host))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestI13AnOverlapWithALocalNetworkNamesTheInterface(t *testing.T) {
	const base = `
		link lo
		link eth0
		link flannel.1 kind vxlan
		link cni0 kind bridge
		addr lo 127.0.0.1/8
		addr eth0 10.0.0.11/24
		addr flannel.1 10.244.1.0/32
		addr cni0 10.244.1.1/24
	`
	tests := map[string]struct{ text, want string }{
		"none":                            {"", ""},
		"a bridge around the own range":   {"link docker0 kind bridge\naddr docker0 10.244.1.1/16", "docker0 has 10.244.1.1/16 inside 10.244.0.0/16"},
		"a bridge of the own range":       {"link docker0 kind bridge\naddr docker0 10.244.1.1/24", "docker0 has 10.244.1.1/24 inside 10.244.0.0/16"},
		"a bridge of a part of the own":   {"link virbr0 kind bridge\naddr virbr0 10.244.1.129/25", "virbr0 has 10.244.1.129/25 inside 10.244.0.0/16"},
		"IPv6, a bridge of the own range": {"link br-1 kind bridge\naddr br-1 fd00:10:244:1::1/64", "br-1 has fd00:10:244:1::1/64 inside fd00:10:244::/56"},
		"a bridge of the same range":      {"link docker0 kind bridge\naddr docker0 10.244.0.1/16", "docker0 has 10.244.0.1/16 inside 10.244.0.0/16"},
		"a bridge of a part of it":        {"link br-1 kind bridge\naddr br-1 10.244.7.1/24", "br-1 has 10.244.7.1/24 inside 10.244.0.0/16"},
		"the underlay":                    {"addr eth0 10.244.0.5/24", "eth0 has 10.244.0.5/24 inside 10.244.0.0/16"},
		"IPv6":                            {"link x\naddr x fd00:10:244:5::1/64", "x has fd00:10:244:5::1/64 inside fd00:10:244::/56"},
		"two":                             {"link x\nlink y\naddr x 10.244.4.1/30\naddr y 10.244.5.1/32", "x has 10.244.4.1/30 inside 10.244.0.0/16; y has 10.244.5.1/32 inside 10.244.0.0/16"},
		"a point-to-point pod":            {"link veth7 kind veth\naddr veth7 10.244.1.1/32", ""},
		"a device that is down":           {"link docker0 kind bridge down\naddr docker0 10.244.0.1/16", ""},
		"a wider local network":           {"addr eth0 10.244.0.5/8", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := Overlaps(pods, nets("10.244.1.0/24", "fd00:10:244:1::/64"), host(t, base+tt.text))
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			want := "check the pod network: " + tt.want + "; move one of the two: pod network overlaps a local network"
			if err == nil || !errors.Is(err, ErrOverlap) {
				t.Fatalf("error %v, want %s", err, want)
			}
			if diff := cmp.Diff(want, err.Error()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestI13TheBridgeOfThePodsIsKnownByItsAddressWhateverItsName(t *testing.T) {
	const pod = "link cbr0 kind bridge\naddr cbr0 10.244.1.1/24\naddr cbr0 fd00:10:244:1::1/64\n"
	for text, want := range map[string]string{
		pod:                             "",
		pod + "addr cbr0 10.244.9.1/24": "", // of a range before, which the address collection takes off
		pod + "link docker0 kind bridge\naddr docker0 10.244.1.1/16": "docker0 has 10.244.1.1/16",
		"link eth0\naddr eth0 10.244.1.1/24":                         "eth0 has 10.244.1.1/24", // no bridge
	} {
		err := Overlaps(pods, nets("10.244.1.0/24", "fd00:10:244:1::/64"), host(t, text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q, on\n%s", err, want, text)
		}
	}
}

func TestAListInOneIfaceIsExplained(t *testing.T) {
	_, err := Pick(Options{Iface: []string{"eth0,eth1"}}, host(t, twoNICs))
	if err == nil || !strings.Contains(err.Error(), "--iface=eth0,eth1: no interface of that name; for several, repeat --iface") {
		t.Error(err)
	}
}
