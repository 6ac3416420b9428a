package traffic

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

// flow is one row of the packet table: who sends (and from which of its addresses), where to, and which source arrives:
// "own", "node" for any address of the first node, "node2" for one of the second.
type flow struct {
	from, bind, to string
	port           uint16
	want           string
}

// flows is the verdict table of decision 18 as packets that can really be sent. M-10, M-11 and M-12 are rows of it.
var flows = []flow{
	{from: "pod-a", to: "pod-a2", want: "own"},
	{from: "pod-a", to: "pod-b", want: "own"},
	{from: "pod-b", to: "pod-a", want: "own"},
	{from: "pod-a", to: "outside", want: "node"},
	{from: "pod-b", to: "outside", want: "node2"},
	{from: "pod-a", to: "excluded", want: "own"}, // M-11
	{from: "pod-a", to: "node", want: "own"},
	{from: "pod-a", to: "node2", want: "node"},
	{from: "node", bind: "node", to: "pod-a", want: "own"},
	{from: "node", bind: "node", to: "pod-b", want: "node"}, // M-12: else the answer goes past the tunnel
	{from: "node", to: "pod-b", want: "tunnel"},
	{from: "node", to: "outside", want: "own"},
	{from: "node", bind: "tunnel", to: "outside", want: "node"},
	{from: "node", bind: "bridge", to: "pod-b", want: "own"},
	{from: "outside", to: "pod-a", want: "own"},  // M-10
	{from: "outside", to: "pod-b", want: "node"}, // M-12
}

// serviceFlows need kube-proxy's rules: cluster addresses and node ports.
var serviceFlows = []flow{
	{from: "pod-a", to: "vip", port: 80, want: "own"},               // to pod-b
	{from: "pod-a", to: "vip2", port: 80, want: "node"},             // to pod-a itself: only a marked packet comes back
	{from: "outside", to: "node", port: 30080, want: "node"},        // to pod-b, policy Cluster
	{from: "outside", to: "node", port: 30081, want: "node"},        // to pod-a, policy Cluster
	{from: "outside", to: "node", port: 30082, want: "own"},         // to pod-a, policy Local: M-10
	{from: "node", bind: "node", to: "vip", port: 80, want: "node"}, // M-12
}

// proxies imitate kube-proxy on the first node, in each of its modes.
func proxies() map[string]func(*world) {
	return map[string]func(*world){
		"iptables-nft":    func(w *world) { w.proxyIptables("nft") },
		"iptables-legacy": func(w *world) { w.proxyIptables("legacy") },
		"nftables":        func(w *world) { w.proxyNFT() },
	}
}

func TestM10M11M12TheSourceOfEveryFlowIsAsTheTableSays(t *testing.T) {
	w := newWorld(t)
	for i, n := range w.node {
		sync(t, manager(n), nodeConfig(i+1))
	}
	w.check(flows)
}

// S-05: public IPv6 ranges are routed by the network outside, and so may IPv4's be.
func TestS05OneFamilyKeepsItsSourceAndTheOtherIsMasqueraded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	outside := []flow{{from: "pod-a", to: "outside", want: "node"}, {from: "node", bind: "node", to: "pod-b", want: "node"}}
	kept := []flow{{from: "pod-a", to: "outside", want: "own"}, {from: "pod-a", to: "node2", want: "own"}, {from: "outside", to: "pod-a", want: "own"}}
	for _, f := range subnet.Families() {
		for i, n := range w.node {
			c := nodeConfig(i + 1)
			c.Nets[f].KeepSource = true
			sync(t, manager(n), c)
			n.Run("conntrack", "-F")
		}
		w.checkIn(f, kept)
		w.checkIn(1-f, outside)
	}
}

func TestVerdictsDoNotDependOnTheOrderWithKubeProxy(t *testing.T) {
	for name, start := range proxies() {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s first %v", name, first), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				if first {
					start(w)
				}
				for i, n := range w.node {
					sync(t, manager(n), nodeConfig(i+1))
				}
				if !first {
					start(w)
				}
				w.check(flows)
				w.check(serviceFlows)
			})
		}
	}
}

// check sends every flow in both families and compares the source that arrives.
func (w *world) check(table []flow) {
	w.t.Helper()
	for _, f := range subnet.Families() {
		w.checkIn(f, table)
	}
}

// checkIn sends every flow in one family.
func (w *world) checkIn(f subnet.Family, table []flow) {
	w.t.Helper()
	places := map[string]*nstest.NS{
		"pod-a": w.pods["pod-a"], "pod-a2": w.pods["pod-a2"], "pod-b": w.pods["pod-b"], "node": w.node[0], "outside": w.outside,
	}
	a := addrs(f)
	sources := map[string][]netip.Addr{
		"node": {a["node"], a["bridge"], a["tunnel"]}, "node2": {a["node2"]}, "tunnel": {a["tunnel"]},
	}
	for _, fl := range table {
		port := fl.port
		if port == 0 {
			port = echoPort
		}
		want := sources[fl.want]
		if fl.want == "own" {
			want = []netip.Addr{a[fl.from]}
			if fl.bind != "" {
				want = []netip.Addr{a[fl.bind]}
			}
		}
		var bind netip.Addr
		if fl.bind != "" {
			bind = a[fl.bind]
		}
		got, err := seen(places[fl.from], bind, netip.AddrPortFrom(a[fl.to], port))
		if err != nil || !slices.Contains(want, got.Addr()) {
			w.t.Errorf("%s: %s to %s %d: the source is %v (%v), want one of %v", f, strings.TrimSpace(fl.from+" "+fl.bind), fl.to, port, got, err, want)
		}
	}
}

// service is one rule of kube-proxy: where it listens, where it leads, and whether the source is to be rewritten.
type service struct {
	at, to string
	port   int
	mark   bool
}

var services = []service{
	{"vip", "pod-b", 80, false}, {"vip2", "pod-a", 80, true},
	{"node", "pod-b", 30080, true}, {"node", "pod-a", 30081, true}, {"node", "pod-a", 30082, false},
}

// hairpin lets a frame leave by the port it came from, as the bridge plugin does with hairpinMode.
func (w *world) hairpin() {
	w.t.Helper()
	for line := range strings.Lines(w.node[0].Bridge("link show")) {
		if strings.Contains(line, "master cni0") {
			name, _, _ := strings.Cut(strings.Fields(line)[1], "@")
			w.node[0].Bridge("link set dev " + name + " hairpin on")
		}
	}
}

func (w *world) proxyIptables(engine string) {
	w.t.Helper()
	w.hairpin()
	for _, f := range families() {
		a := addrs(f.Family)
		lines := []string{"*nat", ":KUBE-SERVICES - [0:0]", ":KUBE-MARK-MASQ - [0:0]", ":KUBE-POSTROUTING - [0:0]",
			"-A PREROUTING -j KUBE-SERVICES", "-A OUTPUT -j KUBE-SERVICES", "-A POSTROUTING -j KUBE-POSTROUTING",
			"-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
			"-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
			"-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0", "-A KUBE-POSTROUTING -j MASQUERADE --random-fully"}
		for _, s := range services {
			match := fmt.Sprintf("-A KUBE-SERVICES -d %s -p udp --dport %d ", a[s.at], s.port)
			if s.mark {
				lines = append(lines, match+"-j KUBE-MARK-MASQ")
			}
			lines = append(lines, match+"-j DNAT --to-destination "+netip.AddrPortFrom(a[s.to], echoPort).String())
		}
		if _, err := w.node[0].Input(strings.Join(append(lines, "COMMIT", ""), "\n"), f.Tool+"-"+engine+"-restore", "-w", "--noflush"); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) proxyNFT() {
	w.t.Helper()
	w.hairpin()
	for _, f := range families() {
		a := addrs(f.Family)
		var rules strings.Builder
		for _, s := range services {
			mark := ""
			if s.mark {
				mark = "meta mark set meta mark | 0x4000 "
			}
			fmt.Fprintf(&rules, "%s daddr %s udp dport %d %sdnat to %s\n", f.Proto, a[s.at], s.port, mark, netip.AddrPortFrom(a[s.to], echoPort))
		}
		w.node[0].SetNFT(fmt.Sprintf(`table %s kube-proxy {
			chain services { %s }
			chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
			chain nat-output { type nat hook output priority -100; jump services; }
			chain masquerading { meta mark & 0x4000 == 0 return; meta mark set meta mark ^ 0x4000; masquerade fully-random; }
			chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
		}`, f.Proto, rules.String()))
	}
}
