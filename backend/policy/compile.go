package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Config is how policies are to be enforced, the same for all of them.
type Config struct {
	Audit           bool // count what would be denied, and let it pass
	KeepEstablished bool // judge a connection when it is set up, and never again

	// Held tells of an address to and from which nothing passes until its rules are in force, and whose connections with an
	// earlier pod are ended by whoever lets it go: to look for these in the kernel's table takes 10 ms. Compile does without.
	Held func(netip.Addr) bool

	// Bridged are the addresses of the pods on this node's bridge, by subnet.Family. Compile does without.
	Bridged [2]netip.Prefix
}

// Compile computes the rules of this node. It is pure; equal Worlds give equal Rulesets.
func Compile(w World, c Config) Ruleset { return NewCompiler().Compile(w, c) }

// Compiler computes the rules of one World after another. What it returns depends on the World alone, not on those before:
// what it keeps are the members of the sets that are in use, so that a pod that changed is shown to those sets, and the other
// pods to none.
type Compiler struct {
	owners *owners
	groups map[string]*group // by key
}

// NewCompiler makes a Compiler that has seen nothing.
func NewCompiler() *Compiler { return &Compiler{owners: newOwners(), groups: map[string]*group{}} }

// Compile computes the rules of this node in a World.
func (c *Compiler) Compile(w World, cfg Config) Ruleset {
	changes := c.owners.follow(w, len(c.groups) > 0)
	for _, g := range c.groups {
		g.update(changes, c.owners.labels)
	}
	b := build{
		cfg: cfg, world: w, known: c.groups, used: map[string]*group{}, chains: map[string]Chain{}, sets: map[string]Set{},
		counters: map[string]Counter{}, fixed: map[string][]string{}, denying: map[string]bool{},
	}
	b.subjects(c.owners)
	c.owners.fill(b.fresh)
	c.groups = b.used
	return b.ruleset()
}

// build is one compilation under way.
type build struct {
	cfg      Config
	world    World
	known    map[string]*group // of the last compilation, up to date
	used     map[string]*group
	fresh    []*group // those of used that are not filled yet
	families []family // those that a guarded address has

	chains   map[string]Chain
	sets     map[string]Set // of networks and nodes
	counters map[string]Counter
	fixed    map[string][]string // elements of the sets that hold our own pods, by name
	last     [2]lastChain
	denying  map[string]bool // groups and sets of rules that do something else than allow, by name
}

// target makes the chains of a profile, and names the one where they begin; "" when nobody has a say.
func (b *build) target(d Direction, p profile) string {
	if last := b.last[d]; last.name != "" && last.profile.equal(p) {
		return last.name // pods of one workload stand beside each other
	}
	name := b.chainOf(d, p)
	b.last[d] = lastChain{p, name}
	return name
}

func (b *build) chainOf(d Direction, p profile) string {
	tail := b.tail(d, p)
	if len(p.admin) == 0 {
		return tail
	}
	name := d.short() + "-admin-" + hash(append(clusterKeys(p.admin), tail)...)
	if _, made := b.chains[name]; made {
		return name
	}
	var rules []ChainRule
	for _, cp := range p.admin {
		rules = append(rules, b.cluster(d, cp, tail)...)
	}
	if tail != "" {
		rules = append(rules, match{dir: d, verdict: skip, target: tail}.rule("no rule of the Admin tier matched"))
	}
	b.chain(name, rules)
	return name
}

// tail makes the chain behind the Admin tier.
func (b *build) tail(d Direction, p profile) string {
	if len(p.isolated) > 0 {
		return b.isolation(d, p.isolated)
	}
	if len(p.baseline) == 0 {
		return ""
	}
	name := d.short() + "-base-" + hash(clusterKeys(p.baseline)...)
	if _, made := b.chains[name]; made {
		return name
	}
	var rules []ChainRule
	for _, cp := range p.baseline {
		rules = append(rules, b.cluster(d, cp, "")...)
	}
	b.chain(name, rules)
	return name
}

// isolation makes the chain of NetworkPolicies: what none of them allows is dropped.
func (b *build) isolation(d Direction, policies []*NetworkPolicy) string {
	keys := policyKeys(policies)
	name := d.short() + "-np-" + hash(keys...)
	if _, made := b.chains[name]; made {
		return name
	}
	var rules []ChainRule
	for _, np := range policies {
		for i, r := range np.Rules[d] {
			rules = append(rules, b.rules(r, match{dir: d, verdict: allow}, why(np.Key(), d, i, ""))...)
		}
	}
	b.counters[name] = Counter{Name: name, Direction: d, Policies: keys}
	end := match{dir: d, verdict: deny, counter: name, audit: b.cfg.Audit}
	rules = append(rules, end.rule("isolated by "+strings.Join(keys, ", ")))
	b.chain(name, rules)
	return name
}

// cluster makes the rules of a ClusterPolicy. Tail is where a Pass goes on; "" when nobody has a say behind this tier.
func (b *build) cluster(d Direction, cp *ClusterPolicy, tail string) []ChainRule {
	counter := d.short() + "-cnp-" + hash(cp.Key())
	var out []ChainRule
	for i, r := range cp.Rules[d] {
		m := match{dir: d, verdict: allow}
		switch {
		case r.Action == Deny:
			m.verdict, m.counter, m.audit = deny, counter, b.cfg.Audit
			b.counters[counter] = Counter{Name: counter, Direction: d, Policies: []string{cp.Key()}}
		case r.Action == Pass && tail != "":
			m.verdict, m.target = skip, tail
		}
		out = append(out, b.rules(r, m, why(cp.Key(), d, i, r.Name))...)
	}
	return out
}

// chain enters a chain. A rule whose text stands further up already can never decide anything, and is left out.
func (b *build) chain(name string, rules []ChainRule) {
	seen := map[string]bool{}
	c := Chain{Name: name}
	for _, r := range rules {
		if !seen[r.Text] {
			seen[r.Text] = true
			c.Rules = append(c.Rules, r)
		}
	}
	b.chains[name] = c
}

// ruleset puts everything in order.
func (b *build) ruleset() Ruleset {
	if len(b.families) == 0 {
		return Ruleset{}
	}
	r := Ruleset{Chains: slices.Collect(maps.Values(b.chains))}
	for _, s := range b.sets {
		s.denies = b.denying[s.Name]
		r.Sets = append(r.Sets, s)
	}
	r.Chains = append(r.Chains, b.baseChains()...)
	r.Sets = append(r.Sets, b.podSets()...)
	for _, g := range b.used {
		for _, f := range b.families {
			r.Sets = append(r.Sets, Set{Name: setName(g.name, f), Type: g.kind(f), Elements: g.sets[f.Family], denies: b.denying[g.name]})
		}
	}
	if b.cuts() {
		b.counters[strayCounter] = Counter{Name: strayCounter}
	}
	r.Counters = slices.Collect(maps.Values(b.counters))
	slices.SortFunc(r.Chains, func(x, y Chain) int { return cmp.Compare(x.Name, y.Name) })
	slices.SortFunc(r.Sets, func(x, y Set) int { return cmp.Compare(x.Name, y.Name) })
	slices.SortFunc(r.Counters, func(x, y Counter) int { return cmp.Compare(x.Name, y.Name) })
	return r.indexed()
}
