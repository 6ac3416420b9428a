package ask

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy"
)

// mostNames is how many pods or connections are listed by name.
const mostNames = 20

// Audit lists the policies of the cluster, the pods that each selects, and the open connections of this node's pods that they
// do not allow: what enforcing them cuts.
func Audit(ctx context.Context, o Options) error {
	c, err := load(ctx, o)
	if err != nil {
		return err
	}
	printPolicies(o.Out, c.world)
	for _, p := range c.problems {
		_, _ = fmt.Fprintf(o.Out, "PROBLEM  %s: %s\n", p.Policy, p.Text)
	}
	if len(c.world.Policies)+len(c.world.Cluster) == 0 {
		return nil
	}
	forbidden, err := policy.New(netfilter.Host{}).Forbidden(c.world)
	if err != nil {
		return fmt.Errorf("list the open connections of this node: %w", err)
	}
	printForbidden(o.Out, c.world, forbidden)
	return nil
}

func printPolicies(out io.Writer, w policy.World) {
	_, _ = fmt.Fprintf(out, "%d NetworkPolicies, %d ClusterNetworkPolicies\n", len(w.Policies), len(w.Cluster))
	subjects := w.Subjects()
	for _, np := range w.Policies {
		var dirs []string
		for d, isolates := range np.Isolates {
			if isolates {
				dirs = append(dirs, policy.Direction(d).String())
			}
		}
		printSubjects(out, np.Key(), "isolates "+strings.Join(dirs, " and ")+" of", subjects[np.Key()])
	}
	for _, cp := range w.Cluster {
		printSubjects(out, cp.Key(), "has a say over", subjects[cp.Key()])
	}
}

func printSubjects(out io.Writer, key, does string, pods []*policy.Pod) {
	here := 0
	names := make([]string, len(pods))
	for i, p := range pods {
		names[i] = p.Namespace + "/" + p.Name
		if p.Local {
			here++
		}
	}
	_, _ = fmt.Fprintf(out, "%s %s %d pods, %d of this node: %s\n", key, does, len(pods), here, some(names))
}

func printForbidden(out io.Writer, w policy.World, forbidden []policy.Forbidden) {
	_, _ = fmt.Fprintf(out, "open connections of this node that are not allowed: %d\n", len(forbidden))
	whose := map[netip.Addr]string{}
	name := func(addr netip.Addr) string {
		if _, known := whose[addr]; !known {
			whose[addr] = "outside"
			if p := w.At(addr); p != nil {
				whose[addr] = p.Namespace + "/" + p.Name
			}
		}
		return whose[addr]
	}
	count := map[string]int{}
	for _, f := range forbidden {
		count[fmt.Sprintf("%s > %s %d/%s: denied by %s", name(f.Flow.Src), name(f.Flow.Dst), f.Flow.DstPort, f.Flow.Proto,
			strings.Join(f.Policies, ", "))]++
	}
	lines := slices.Sorted(maps.Keys(count))
	for _, line := range lines[:min(len(lines), mostNames)] {
		_, _ = fmt.Fprintf(out, "  %s (%d)\n", line, count[line])
	}
	if more := len(lines) - mostNames; more > 0 {
		_, _ = fmt.Fprintf(out, "  and %d more pairs\n", more)
	}
}

// some lists names, not more than a reader takes in.
func some(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	if more := len(names) - mostNames; more > 0 {
		return strings.Join(names[:mostNames], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}
