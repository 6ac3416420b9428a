package ask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/subnet"
)

// Question is a connection that is asked about.
type Question struct {
	From, To string // "namespace/pod", or an IP address
	Port     string // "80/tcp"; without a protocol it is TCP
}

// Trace says whether a connection is allowed, by which policy and rule, from the live objects of the cluster, and whether
// this node's kernel holds the same. It returns ErrDenied for one that is not.
func Trace(ctx context.Context, o Options, q Question) error {
	port, proto, err := parsePort(q.Port)
	if err != nil {
		return err
	}
	c, err := load(ctx, o)
	if err != nil {
		return err
	}
	if len(c.world.Policies)+len(c.world.Cluster) == 0 {
		_, _ = fmt.Fprintln(o.Out, "allowed: there are no policies in this cluster")
		return nil
	}
	from, err := find(c.world, "--from", q.From)
	if err != nil {
		return err
	}
	to, err := find(c.world, "--to", q.To)
	if err != nil {
		return err
	}
	flows := between(from, to, proto, port)
	if len(flows) == 0 {
		return fmt.Errorf("%s and %s have no addresses of one family", q.From, q.To)
	}
	own, err := netfilter.Host{}.Addresses()
	if err != nil {
		return err
	}
	denied := traced{world: c.world, from: from, to: to, flows: flows, own: own}.print(o.Out)
	for _, e := range []end{from, to} {
		switch {
		case e.pod == nil:
		case e.pod.Local:
			text, err := kernel(ctx, c.world)
			if err != nil {
				text = "cannot be read: " + err.Error()
			}
			_, _ = fmt.Fprintf(o.Out, "the kernel of this node, where %s is: %s\n", e.name, text)
		default:
			_, _ = fmt.Fprintf(o.Out, "%s is on another node; ask the agent there whether its kernel agrees\n", e.name)
		}
	}
	if denied {
		return ErrDenied
	}
	return nil
}

// end is one side of the question.
type end struct {
	name  string
	pod   *policy.Pod // nil for an address that is no pod's
	addrs [2]netip.Addr
}

// find finds the pod of a name, or whose address it is.
func find(w policy.World, flag, name string) (end, error) {
	addr, err := netip.ParseAddr(name)
	if addr = addr.Unmap(); addr.Zone() != "" {
		return end{}, fmt.Errorf("%s=%q: policies know no address of one link", flag, name)
	}
	if err == nil {
		e := end{name: name}
		if p := w.At(addr); p != nil {
			e = endOf(w, p)
		}
		e.addrs[subnet.FamilyOf(addr)] = addr
		return e, nil
	}
	for _, p := range w.Pods {
		switch {
		case p.Namespace+"/"+p.Name != name:
		case p.HostNetwork:
			return end{}, fmt.Errorf("%s=%q: this pod uses its node's network: no policy selects it, and to others it is its node; ask about the node's address", flag, name)
		case p.Phase == policy.Finished:
			return end{}, fmt.Errorf("%s=%q: this pod has ended: no policy selects it, and its address may be another pod's", flag, name)
		default:
			return owned(w, p, flag)
		}
	}
	return end{}, fmt.Errorf("%s=%q: no IP address, and no pod of that name (namespace/pod) that runs with an address of its own", flag, name)
}

// endOf is a pod with the addresses that are its own: one that is about to go may still be listed with what is another's by now.
func endOf(w policy.World, p *policy.Pod) end {
	e := end{name: p.Namespace + "/" + p.Name, pod: p}
	for f, a := range p.Addrs {
		if w.At(a) == p {
			e.addrs[f] = a
		}
	}
	return e
}

// owned is endOf, with a word about a pod that has lost all its addresses.
func owned(w policy.World, p *policy.Pod, flag string) (end, error) {
	e := endOf(w, p)
	for _, a := range p.Addrs {
		if by := w.At(a); by != nil && e.addrs == [2]netip.Addr{} {
			return e, fmt.Errorf("%s=%q: its address %s is that of %s/%s by now; ask about that one", flag, e.name, a, by.Namespace, by.Name)
		}
	}
	return e, nil
}

// between lists the connection once for each family that both ends have.
func between(from, to end, proto policy.Proto, port uint16) []policy.Flow {
	const anyPort = 40000 // policies do not look at a source's port
	var out []policy.Flow
	for _, f := range subnet.Families() {
		if from.addrs[f].IsValid() && to.addrs[f].IsValid() {
			out = append(out, policy.Flow{Src: from.addrs[f], Dst: to.addrs[f], Proto: proto, SrcPort: anyPort, DstPort: port})
		}
	}
	return out
}

// traced is a connection between two ends, once for each family.
type traced struct {
	world    policy.World
	from, to end
	flows    []policy.Flow
	own      map[netip.Addr]bool // this node's addresses
}

// print prints what becomes of it, and tells whether it is denied in one family. Both ends are taken for local, since each
// is judged on a node of its own.
func (t traced) print(out io.Writer) (denied bool) {
	rules := policy.Compile(withLocal(t.world, t.from.pod, t.to.pod), policy.Config{})
	for _, f := range t.flows {
		v, node := t.judge(rules, f)
		verdict := "allowed"
		if !v.Allowed {
			verdict, denied = "DENIED", true
		}
		_, _ = fmt.Fprintf(out, "%s: %s (%s) to %s (%s), %d/%s\n", verdict, t.from.name, f.Src, t.to.name, f.Dst, f.DstPort, f.Proto)
		if len(v.Steps) == 0 {
			_, _ = fmt.Fprintln(out, "  "+cmp.Or(node, "no policy has a say over either end"))
		}
		for _, s := range v.Steps {
			word := "allowed"
			if !s.Allowed {
				word = "denied"
			}
			_, _ = fmt.Fprintf(out, "  %-7s %s: %s\n", s.Direction, word, s.Why)
		}
	}
	if to := t.to.pod; denied && t.from.pod == nil && to != nil && !to.Local {
		_, _ = fmt.Fprintf(out, "  unless %s is the node of %s, which reaches its own pods whatever policies say\n", t.from.name, t.to.name)
	}
	return denied
}

// judge judges a flow as the kernel does, which makes a difference between this node and others. Node says how.
func (t traced) judge(rules policy.Ruleset, f policy.Flow) (v policy.Verdict, node string) {
	switch {
	case t.own[f.Src] && t.to.pod != nil && t.to.pod.Local:
		return policy.Verdict{Allowed: true}, "allowed: the node reaches its own pods, whatever policies say"
	case t.own[f.Dst] && t.from.pod != nil && t.from.pod.Local:
		return rules.JudgeToNode(f), "only ClusterNetworkPolicies have a say over what a pod sends its own node"
	}
	return rules.Judge(f), ""
}

// withLocal is the World of a node that has these pods and no others.
func withLocal(w policy.World, pods ...*policy.Pod) policy.World {
	changed := slices.Clone(w.Pods)
	for i, p := range changed {
		local := slices.Contains(pods, p)
		if p.Local != local {
			c := *p
			c.Local = local
			changed[i] = &c
		}
	}
	w.Pods, w.Local, w.Gated = changed, nil, nil
	return w
}

func parsePort(s string) (uint16, policy.Proto, error) {
	number, name, named := strings.Cut(s, "/")
	proto, ok := policy.TCP, true
	if named {
		proto, ok = policy.ParseProto(strings.ToUpper(name))
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil || !ok || port == 0 {
		return 0, 0, errors.New("--port=" + strconv.Quote(s) + ": want a number and a protocol, like 80/tcp, 53/udp or 3868/sctp")
	}
	return uint16(port), proto, nil
}
