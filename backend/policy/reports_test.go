package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/oracle"
)

// town is a World in which every pod is of this node, with the questions that a test asks of it.
type town struct {
	t *testing.T
	policy.World
}

// newTown has the namespaces x, y and z with the pods a, b and c each. Namespaces and pods have their name as a label.
func newTown(t *testing.T) *town {
	w := &town{t: t}
	for i, ns := range []string{"x", "y", "z"} {
		w.Namespaces = append(w.Namespaces, &policy.Namespace{Name: ns, Labels: policy.LabelsOf(map[string]string{"ns": ns})})
		for k, name := range []string{"a", "b", "c"} {
			w.Pods = append(w.Pods, &policy.Pod{
				Namespace: ns, Name: name, UID: ns + name, Local: true, Phase: policy.Running,
				Labels: policy.LabelsOf(map[string]string{"pod": name}), Ports: []policy.NamedPort{{Name: "serve", Proto: policy.TCP, Port: 80}},
				Addrs: [2]netip.Addr{
					netip.AddrFrom4([4]byte{10, 244, byte(i), byte(k + 1)}), netip.MustParseAddr(fmt.Sprintf("fd00:%d::%d", i, k+1)),
				},
			})
		}
	}
	return w
}

// pod finds a pod by "namespace/name".
func (w *town) pod(key string) *policy.Pod {
	w.t.Helper()
	ns, name, _ := strings.Cut(key, "/")
	for _, p := range w.Pods {
		if p.Namespace == ns && p.Name == name {
			return p
		}
	}
	w.t.Fatalf("no pod %s", key)
	return nil
}

// change replaces a pod by one that differs.
func (w *town) change(key string, edit func(*policy.Pod)) {
	w.t.Helper()
	old := w.pod(key)
	now := *old
	edit(&now)
	w.Pods = slices.Clone(w.Pods)
	w.Pods[slices.Index(w.Pods, old)] = &now
}

// add puts a pod into its place.
func (w *town) add(p *policy.Pod) {
	w.Pods = append(slices.Clone(w.Pods), p)
	slices.SortFunc(w.Pods, func(a, b *policy.Pod) int {
		return strings.Compare(a.Namespace+" "+a.Name+" "+a.UID, b.Namespace+" "+b.Name+" "+b.UID)
	})
}

// protect isolates pods of namespace x for ingress, with the rules given.
func (w *town) protect(pods policy.Selector, rules ...policy.Rule) {
	np := &policy.NetworkPolicy{Namespace: "x", Name: fmt.Sprint("np", len(w.Policies)), Pods: pods, Isolates: [2]bool{true, false}}
	np.Rules[policy.Ingress] = rules
	w.Policies = append(slices.Clone(w.Policies), np)
}

// passes asks "from > to:port/protocol", in words: "y/a > x/a:80/tcp", "192.0.2.1 > x/a:80/udp". Rules, values and the oracle
// have to agree, in both families where both ends are pods.
func (w *town) passes(question string) bool {
	w.t.Helper()
	from, rest, _ := strings.Cut(question, " > ")
	to, service, _ := strings.Cut(rest, ":")
	var n uint16
	var name string
	if _, err := fmt.Sscanf(strings.Replace(service, "/", " ", 1), "%d %s", &n, &name); err != nil {
		w.t.Fatalf("%q: %v", question, err)
	}
	proto, ok := policy.ParseProto(name)
	if !ok && name == "icmp" {
		proto = 1
	}
	rules := policy.Compile(w.World, policy.Config{})
	tr := tracer{t: w.t, table: policy.NewFake(w.t, rules).Table}
	var answers []bool
	for f := range 2 {
		src, dst := w.end(from, f), w.end(to, f)
		if !src.IsValid() || !dst.IsValid() {
			continue
		}
		p := oracle.Packet{Src: src, Dst: dst, Proto: proto, Port: n}
		answers = append(answers, tr.passes("forward", packet{Packet: p}), oracle.Allowed(w.World, p),
			rules.Judge(policy.Flow{Src: src, Dst: dst, Proto: proto, DstPort: n}).Allowed)
	}
	if len(answers) == 0 || slices.Contains(answers, !answers[0]) {
		w.t.Fatalf("%s: rules, oracle and Judge do not agree: %v\n%s", question, answers, rules)
	}
	return answers[0]
}

// end is a pod's address of a family, or an address that is given as such.
func (w *town) end(name string, f int) netip.Addr {
	if strings.Contains(name, "/") {
		return w.pod(name).Addrs[f]
	}
	a := netip.MustParseAddr(name)
	if a.Is4() != (f == 0) {
		return netip.Addr{}
	}
	return a
}

// expect asks questions that are to be answered with yes, and others that are to be answered with no.
func (w *town) expect(yes, no []string) {
	w.t.Helper()
	for _, q := range yes {
		if !w.passes(q) {
			w.t.Errorf("%s does not pass", q)
		}
	}
	for _, q := range no {
		if w.passes(q) {
			w.t.Errorf("%s passes", q)
		}
	}
}

// only is a selector for one label.
func only(key string, values ...string) policy.Selector {
	return policy.Selector{All: []policy.Requirement{{Key: key, Op: policy.In, Values: values}}}
}

func everywhere(pods policy.Selector) policy.Peer {
	return policy.Peer{Namespaces: &policy.Selector{}, Pods: pods}
}

func from(peers ...policy.Peer) policy.Rule { return policy.Rule{Peers: peers, AllPorts: true} }

func on(ports ...policy.Port) policy.Rule { return policy.Rule{AllPeers: true, Ports: ports} }

func network(cidr string, except ...string) policy.Peer {
	n := policy.Network{CIDR: netip.MustParsePrefix(cidr)}
	for _, e := range except {
		n.Except = append(n.Except, netip.MustParsePrefix(e))
	}
	return policy.Peer{Networks: []policy.Network{n}}
}

func TestN01AFinishedPodIsNeitherSubjectNorPeerAndItsAddressIsAnothers(t *testing.T) {
	w := newTown(t)
	w.protect(only("pod", "a"), from(everywhere(only("pod", "c"))))
	w.change("x/a", func(p *policy.Pod) { p.Phase = policy.Finished })
	w.change("y/c", func(p *policy.Pod) { p.Phase = policy.Finished })
	heir := *w.pod("x/b")
	heir.Name, heir.UID, heir.Addrs = "heir", "heir", w.pod("x/a").Addrs
	w.add(&heir)
	w.expect([]string{"y/a > x/heir:80/tcp"}, nil)
	w.change("x/a", func(p *policy.Pod) { p.Phase = policy.Pending }) // two claim it: the one that runs has it
	w.expect([]string{"y/a > x/heir:80/tcp"}, nil)
	w.change("x/a", func(p *policy.Pod) { p.Phase, p.Created = policy.Running, 5 })
	w.expect([]string{"z/c > x/a:80/tcp"}, []string{"y/a > x/heir:80/tcp", "y/c > x/a:80/tcp"})
}

func TestN02ATerminatingPodIsSubjectAndPeerToTheLast(t *testing.T) {
	w := newTown(t)
	w.protect(only("pod", "a"), from(everywhere(only("pod", "c"))))
	w.change("x/a", func(p *policy.Pod) { p.Terminating = true })
	w.change("y/c", func(p *policy.Pod) { p.Terminating = true })
	w.expect([]string{"y/c > x/a:80/tcp"}, []string{"y/b > x/a:80/tcp"})
	// The successor has the same name and another UID; that the first goes for good takes nothing from it.
	first := w.pod("y/c")
	second := *first
	second.UID, second.Terminating, second.Created = "yc2", false, 9
	w.add(&second)
	w.Pods = slices.DeleteFunc(slices.Clone(w.Pods), func(p *policy.Pod) bool { return p == first })
	w.expect([]string{"y/c > x/a:80/tcp"}, nil)
}

func TestN06AnExceptionLimitsItsOwnNetworkOnly(t *testing.T) {
	for _, c := range []struct {
		name    string
		peers   []policy.Peer
		yes, no []string
	}{
		{"everything less some", []policy.Peer{network("0.0.0.0/0", "10.0.0.0/8")}, []string{"192.0.2.1", "9.255.255.255", "11.0.0.0"}, []string{"10.0.0.0", "10.255.255.255", "2001:db8::1"}},
		{"a second one inside the exception", []policy.Peer{network("0.0.0.0/0", "10.0.0.0/8"), network("10.96.0.10/32")}, []string{"10.96.0.10", "192.0.2.1"}, []string{"10.96.0.9", "10.96.0.11"}},
		{"exceptions beside and inside each other", []policy.Peer{network("192.0.2.0/24", "192.0.2.0/26", "192.0.2.64/26", "192.0.2.32/27")}, []string{"192.0.2.128", "192.0.2.255"}, []string{"192.0.2.0", "192.0.2.40", "192.0.2.127"}},
		{"everything of the other family", []policy.Peer{network("::/0", "2001:db8::/32")}, []string{"2001:db7::1", "fd00::9"}, []string{"2001:db8::1", "192.0.2.1"}},
		{"nothing is left", []policy.Peer{network("192.0.2.0/24", "192.0.2.0/24")}, nil, []string{"192.0.2.1", "192.0.3.1", "2001:db8::1"}},
		{"host bits", []policy.Peer{network("192.0.2.77/24", "192.0.2.99/28")}, []string{"192.0.2.1", "192.0.2.112"}, []string{"192.0.2.96", "192.0.2.111"}},
		{"to the last address", []policy.Peer{network("240.0.0.0/4", "255.255.255.255/32"), network("ffff::/16")}, []string{"255.255.255.254", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}, []string{"255.255.255.255"}},
		{"halves that touch", []policy.Peer{network("0.0.0.0/1"), network("128.0.0.0/1")}, []string{"127.255.255.255", "128.0.0.0", "0.0.0.1"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTown(t)
			w.protect(only("pod", "a"), from(c.peers...))
			ask := func(list []string) (out []string) {
				for _, a := range list {
					out = append(out, a+" > x/a:80/tcp")
				}
				return out
			}
			w.expect(ask(c.yes), ask(c.no))
		})
	}
}

func TestN07SelectorsInOnePeerAreBothAskedAndPeersAreAlternatives(t *testing.T) {
	ns := only("ns", "y")
	pods := only("pod", "b")
	for _, c := range []struct {
		name    string
		rule    policy.Rule
		yes, no []string
	}{
		{"one peer", from(policy.Peer{Namespaces: &ns, Pods: pods}), []string{"y/b"}, []string{"y/a", "x/b", "z/b"}},
		{"two peers", from(policy.Peer{Namespaces: &ns}, policy.Peer{Namespace: "x", Pods: pods}), []string{"y/a", "y/b", "x/b"}, []string{"x/c", "z/b"}},
		{"an empty pod selector is the own namespace", from(policy.Peer{Namespace: "x"}), []string{"x/b", "x/c"}, []string{"y/a"}},
		{"an empty namespace selector is every pod", from(everywhere(policy.Selector{})), []string{"x/b", "y/a", "z/c"}, []string{"192.0.2.1"}},
		{"no peers named is anybody", policy.Rule{AllPeers: true, AllPorts: true}, []string{"y/a", "192.0.2.1"}, nil},
		{"a list that is empty by mistake is nobody", policy.Rule{AllPorts: true}, nil, []string{"x/b", "192.0.2.1"}},
		{"an absent label satisfies NotIn", from(everywhere(policy.Selector{All: []policy.Requirement{{Key: "none", Op: policy.NotIn, Values: []string{"q"}}, {Key: "pod", Op: policy.NotIn, Values: []string{"b"}}}})), []string{"y/a", "z/c"}, []string{"y/b"}},
		{"a label that must not be there", from(everywhere(policy.Selector{All: []policy.Requirement{{Key: "pod", Op: policy.DoesNotExist}}})), nil, []string{"y/a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTown(t)
			w.protect(only("pod", "a"), c.rule)
			for _, who := range c.yes {
				w.expect([]string{who + " > x/a:80/tcp"}, nil)
			}
			for _, who := range c.no {
				w.expect(nil, []string{who + " > x/a:80/tcp"})
			}
		})
	}
}

func TestN07LabelsThatChangeLaterAreFollowed(t *testing.T) {
	w := newTown(t)
	ns := only("team", "red")
	w.protect(only("pod", "a"), from(policy.Peer{Namespaces: &ns, Pods: only("role", "client")}))
	w.expect(nil, []string{"y/b > x/a:80/tcp"})
	w.change("y/b", func(p *policy.Pod) { p.Labels = policy.LabelsOf(map[string]string{"role": "client"}) })
	w.expect(nil, []string{"y/b > x/a:80/tcp"})
	w.Namespaces = slices.Clone(w.Namespaces)
	w.Namespaces[1] = &policy.Namespace{Name: "y", Labels: policy.LabelsOf(map[string]string{"team": "red"})}
	w.expect([]string{"y/b > x/a:80/tcp"}, []string{"y/a > x/a:80/tcp"})
	w.Namespaces = slices.Delete(slices.Clone(w.Namespaces), 1, 2)
	w.expect(nil, []string{"y/b > x/a:80/tcp"})
}

func TestN09PortListsMeanWhatTheAPISays(t *testing.T) {
	many := make([]policy.Port, 0, 40)
	for i := range uint16(40) {
		many = append(many, policy.Port{Proto: policy.TCP, First: 1000 + 10*i, Last: 1004 + 10*i})
	}
	for _, c := range []struct {
		name    string
		rule    policy.Rule
		yes, no []string
	}{
		{"an empty port is all of TCP", on(policy.Port{Proto: policy.TCP}), []string{"1/tcp", "65535/tcp"}, []string{"1/udp", "0/icmp"}},
		{"a protocol", on(policy.Port{Proto: policy.UDP}), []string{"53/udp"}, []string{"53/tcp"}},
		{"a port", on(port(policy.TCP, 80)), []string{"80/tcp"}, []string{"81/tcp", "80/udp", "80/sctp", "0/icmp"}},
		{"a range of one", on(policy.Port{Proto: policy.TCP, First: 80, Last: 80}), []string{"80/tcp"}, []string{"79/tcp", "81/tcp"}},
		{"the whole range", on(policy.Port{Proto: policy.TCP, First: 1, Last: 65535}), []string{"1/tcp", "65535/tcp"}, []string{"1/udp"}},
		{"ranges that overlap", on(policy.Port{Proto: policy.TCP, First: 80, Last: 90}, policy.Port{Proto: policy.TCP, First: 85, Last: 100}, port(policy.TCP, 101)), []string{"80/tcp", "95/tcp", "101/tcp"}, []string{"79/tcp", "102/tcp"}},
		{"more ranges than iptables' multiport takes", on(many...), []string{"1000/tcp", "1394/tcp"}, []string{"1005/tcp", "1395/tcp"}},
		{"no ports named is everything", policy.Rule{AllPeers: true, AllPorts: true}, []string{"1/tcp", "1/udp", "1/sctp", "0/icmp"}, nil},
		{"a list that is empty by mistake is nothing", policy.Rule{AllPeers: true}, nil, []string{"1/tcp", "0/icmp"}},
		{"a name", on(policy.Port{Name: "serve", Proto: policy.TCP}), []string{"80/tcp"}, []string{"80/udp", "81/tcp"}},
		{"a name that nobody has", on(policy.Port{Name: "none", Proto: policy.TCP}), nil, []string{"80/tcp"}},
		{"a name of another protocol", on(policy.Port{Name: "serve", Proto: policy.UDP}), nil, []string{"80/udp", "80/tcp"}},
		{"a name, whatever the protocol", on(policy.Port{Name: "serve"}), []string{"80/tcp"}, []string{"80/udp"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTown(t)
			w.protect(only("pod", "a"), c.rule)
			for _, p := range c.yes {
				w.expect([]string{"10.244.1.1 > x/a:" + p}, nil)
			}
			for _, p := range c.no {
				w.expect(nil, []string{"10.244.1.1 > x/a:" + p})
			}
		})
	}
}

func TestN10SCTPBesideTCPHarmsNeither(t *testing.T) {
	w := newTown(t)
	w.protect(only("pod", "a"), on(port(policy.SCTP, 132), port(policy.TCP, 80)))
	w.expect([]string{"y/a > x/a:132/sctp", "y/a > x/a:80/tcp"}, []string{"y/a > x/a:80/sctp", "y/a > x/a:132/tcp"})
}

func TestN21PodsOnTheHostsNetworkAreOutOfScope(t *testing.T) {
	w := newTown(t)
	node := netip.MustParseAddr("192.168.0.1")
	w.change("x/a", func(p *policy.Pod) { p.HostNetwork, p.Addrs = true, [2]netip.Addr{node} })
	w.protect(policy.Selector{}, from(policy.Peer{Namespace: "x"}))
	w.expect([]string{"y/a > x/a:6443/tcp", "x/c > x/b:80/tcp"}, []string{"y/a > x/b:80/tcp", "192.168.0.1 > x/b:80/tcp"})
}

func TestN22PoliciesThatShareMembersDoNotInterfere(t *testing.T) {
	w := newTown(t)
	w.protect(only("pod", "a"), policy.Rule{Peers: []policy.Peer{everywhere(only("pod", "c"))}, Ports: []policy.Port{port(policy.TCP, 80)}})
	w.protect(only("pod", "a", "b"), policy.Rule{Peers: []policy.Peer{everywhere(only("pod", "c"))}, Ports: []policy.Port{port(policy.TCP, 81)}})
	w.expect([]string{"y/c > x/a:80/tcp", "y/c > x/a:81/tcp", "y/c > x/b:81/tcp"}, []string{"y/c > x/b:80/tcp"})
	w.Policies = w.Policies[1:]
	w.expect([]string{"y/c > x/a:81/tcp", "y/c > x/b:81/tcp"}, []string{"y/c > x/a:80/tcp", "y/c > x/b:80/tcp"})
}

func TestTiersAreAskedInTheirOrder(t *testing.T) {
	rule := func(a policy.Action, who string) policy.Rule {
		return policy.Rule{Action: a, Peers: []policy.Peer{everywhere(only("pod", who))}, AllPorts: true}
	}
	cluster := func(name string, t policy.Tier, prio int32, rules ...policy.Rule) *policy.ClusterPolicy {
		cp := &policy.ClusterPolicy{Name: name, Tier: t, Priority: prio, Subject: everywhere(only("pod", "a"))}
		cp.Rules[policy.Ingress] = rules
		return cp
	}
	w := newTown(t)
	w.Cluster = []*policy.ClusterPolicy{
		cluster("base", policy.Baseline, 0, rule(policy.Deny, "a"), rule(policy.Deny, "b"), rule(policy.Deny, "c")),
		cluster("first", policy.Admin, 1, rule(policy.Pass, "c"), rule(policy.Accept, "a")),
		cluster("second", policy.Admin, 2, rule(policy.Deny, "a"), rule(policy.Deny, "c")),
	}
	w.expect([]string{"y/a > x/a:80/tcp", "y/b > x/b:80/tcp", "192.0.2.1 > x/a:80/tcp"}, []string{"y/b > x/a:80/tcp", "y/c > x/a:80/tcp"})
	w.protect(only("pod", "a"), from(everywhere(only("pod", "c")))) // takes the Baseline tier's place in x
	w.expect([]string{"y/a > x/a:80/tcp", "y/c > x/a:80/tcp"}, []string{"y/b > x/a:80/tcp", "y/c > z/a:80/tcp", "192.0.2.1 > x/a:80/tcp"})
}
