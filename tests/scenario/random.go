package scenario

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/weft-cni/weft/tests/lane"
)

// generator writes a story without end: Nodes come, change and go, daemons die, and somebody keeps breaking things on
// the machines. The same seed writes the same story. It follows what it has done, so that each line makes sense.
type generator struct {
	rng       *rand.Rand
	lane      lane.Lane
	machines  []string
	dead      map[string]bool
	unplugged map[string]bool
	peers     map[string]bool
	away      bool
	rules     bool // the machines have traffic rules, to be broken too
	fresh     int  // numbers given out for MACs and addresses that nobody had before
}

func newGenerator(seed uint64, l lane.Lane, machines int) *generator {
	g := &generator{
		rng: rand.New(rand.NewPCG(seed, 0)), lane: l, dead: map[string]bool{}, unplugged: map[string]bool{}, peers: map[string]bool{},
	}
	for i := range machines {
		g.machines = append(g.machines, fmt.Sprintf("n%d", i+1))
	}
	return g
}

// first is how every story begins.
func (g *generator) first() []string {
	return []string{"node " + strings.Join(g.machines, " "), "synced"}
}

// event is a kind of happening and how often it comes.
type event struct {
	weight int
	write  func(g *generator) string // empty when it makes no sense now
}

func events() []event {
	return []event{
		{12, (*generator).join},
		{6, (*generator).part},
		{10, (*generator).change},
		{4, (*generator).kill},
		{8, (*generator).revive},
		{2, (*generator).api},
		{3, (*generator).fail},
		{30, (*generator).meddle},
		{3, (*generator).card},
		{2, func(g *generator) string { return "wait " + g.pick("1s", "1m", "1h") }},
	}
}

// next writes the next line.
func (g *generator) next() string {
	all := events()
	total := 0
	for _, e := range all {
		total += e.weight
	}
	for {
		n := g.rng.IntN(total)
		for _, e := range all {
			if n -= e.weight; n >= 0 {
				continue
			}
			if line := e.write(g); line != "" {
				return g.half(line)
			}
			break
		}
	}
}

// half makes a line be about one family alone, now and then, where there are two: what can be set apart, can break apart.
func (g *generator) half(line string) string {
	word, _, _ := strings.Cut(line, " ")
	apart := word == "peer" || word == "set" || word == "do" && !strings.Contains(line, "plug")
	if g.lane != lane.Dual || !apart || g.rng.IntN(3) > 0 {
		return line
	}
	return g.pick("ipv4: ", "ipv6: ") + line
}

// last brings everything back, so that all machines can be judged.
func (g *generator) last() []string {
	var lines []string
	if g.away {
		lines = append(lines, "api back")
	}
	for _, m := range g.machines {
		if g.unplugged[m] {
			lines = append(lines, fmt.Sprintf("do %s plug", m))
		}
		if g.dead[m] {
			lines = append(lines, "start "+m)
		}
	}
	return append(lines, "synced")
}

func (g *generator) pick(list ...string) string { return list[g.rng.IntN(len(list))] }

// one picks from a set, or is empty.
func (g *generator) one(set map[string]bool) string {
	if len(set) == 0 {
		return ""
	}
	return g.pick(slices.Sorted(maps.Keys(set))...)
}

func (g *generator) mac() string {
	g.fresh++
	return fmt.Sprintf("0a:ff:00:%02x:%02x:%02x", g.fresh>>16&0xff, g.fresh>>8&0xff, g.fresh&0xff)
}

func (g *generator) ip() string {
	g.fresh++
	return fmt.Sprintf("192.168.%d.%d", 100+g.fresh/250%100, 1+g.fresh%250)
}

// join adds a peer, now and then with a range that another one has or covers.
func (g *generator) join() string {
	name := fmt.Sprintf("n%d", len(g.machines)+1+g.rng.IntN(40))
	if g.peers[name] {
		return ""
	}
	g.peers[name] = true
	line := fmt.Sprintf("peer %s ip=%s mac=%s", name, g.ip(), g.mac())
	switch g.rng.IntN(6) {
	case 0:
		line += fmt.Sprintf(" cidr=10.244.%d.0/24", g.rng.IntN(50))
	case 1:
		line += fmt.Sprintf(" cidr=10.244.%d.0/22", 4*g.rng.IntN(12))
	case 2:
		line += " port=" + g.pick("", "8472", "4790")
	}
	return line
}

func (g *generator) part() string {
	name := g.one(g.peers)
	if name == "" {
		return ""
	}
	delete(g.peers, name)
	return "leave " + name
}

func (g *generator) change() string {
	name := g.one(g.peers)
	if name == "" {
		return ""
	}
	change := []string{
		"mac=" + g.mac(), "ip=" + g.ip(), "port=" + g.pick("", "8472", "4789", "4790"),
		"type=" + g.pick("vxlan", "vxlan", "host-gw"), "managed=" + g.pick("true", "true", "false"),
		fmt.Sprintf("cidr=10.244.%d.0/24", g.rng.IntN(60)),
	}
	return "set " + name + " " + g.pick(change...)
}

func (g *generator) kill() string {
	name := g.pick(g.machines...)
	if g.dead[name] {
		return ""
	}
	g.dead[name] = true
	return "kill " + name
}

func (g *generator) revive() string {
	name := g.one(g.dead)
	if name == "" {
		return ""
	}
	delete(g.dead, name)
	if g.rng.IntN(3) > 0 {
		return "start " + name
	}
	settings := []string{"mtu=1400", "mtu=0", "port=4790", "port=4789", "vni=1", "vni=7", "mac=" + g.mac()}
	if !g.rules { // whose judge knows VXLAN alone
		settings = append(settings, "backend=host-gw", "backend=host-gw", "backend=vxlan", "direct=true", "direct=true", "direct=false")
	}
	return "start " + name + " " + g.pick(settings...)
}

func (g *generator) api() string {
	g.away = !g.away
	if g.away {
		return "api away"
	}
	return "api back"
}

func (g *generator) fail() string {
	return fmt.Sprintf("fail %s %d %s", g.pick(g.machines...), 1+g.rng.IntN(6), g.pick("EBUSY", "ENOBUFS", "EINVAL"))
}

// card takes a network card out, puts one in, or changes what is on it.
func (g *generator) card() string {
	name := g.pick(g.machines...)
	switch {
	case g.unplugged[name]:
		delete(g.unplugged, name)
		return fmt.Sprintf("do %s plug", name)
	case g.rng.IntN(3) == 0:
		g.unplugged[name] = true
		return fmt.Sprintf("do %s unplug", name)
	}
	return fmt.Sprintf("do %s ip link set eth0 mtu %s", name, g.pick("1500", "1450", "1400"))
}

// meddle breaks something of the overlay on a machine. What it names may not be there: then the command fails, and
// nobody cares.
func (g *generator) meddle() string {
	name := g.pick(g.machines...)
	device := "flannel." + g.pick("1", "1", "1", "7")
	n := g.rng.IntN(60)
	mac := fmt.Sprintf("0a:00:00:00:00:%02x", n)
	commands := []string{
		"ip link del DEV",
		"ip link set DEV down",
		"ip link set DEV mtu 1280",
		"ip link set DEV address " + g.mac(),
		"ip route flush dev DEV",
		"ip neigh flush dev DEV nud permanent",
		fmt.Sprintf("ip route del 10.244.%d.0/24", n),
		fmt.Sprintf("ip neigh del 10.244.%d.0 dev DEV", n),
		"bridge fdb del " + mac + " dev DEV",
		fmt.Sprintf("ip addr del 10.244.%s.0/32 dev DEV", strings.TrimPrefix(name, "n")),
		fmt.Sprintf("ip addr add 10.244.%d.0/32 dev DEV", 100+n),
		fmt.Sprintf("ip neigh replace 10.244.%d.0 lladdr %s dev DEV nud permanent", n, g.mac()),
		fmt.Sprintf("ip route replace 10.244.%d.0/24 via 10.244.%d.0 dev DEV onlink", n, 200+n%50),
		"bridge fdb append " + mac + " dev DEV dst 192.168.99.99",
		"bridge fdb replace " + g.mac() + " dev DEV dst 192.168.99.99",
	}
	if g.rules { // a rule that also drops TCP would keep a daemon that is down from the API server when it starts, for longer than a step may take
		commands = append(commands, "nft flush ruleset", "nft delete table inet weft", "nft flush chain inet weft postrouting",
			"nft insert rule inet weft postrouting masquerade", "nft flush set inet weft peers-ipv4", "nft add chain inet weft stranger",
			"nft insert rule inet weft inbound udp counter drop", "bridge fdb flush dev DEV", "ip addr flush dev DEV",
			"ip link add other type vxlan id 9 dstport 4789 dev eth0", "ip link del other", "iptables-nft -P FORWARD DROP", "iptables-nft -F FORWARD")
	}
	return "do " + name + " " + strings.ReplaceAll(g.pick(commands...), "DEV", device)
}
