package kube

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// conflict is two Nodes that claim one thing.
type conflict struct{ reason, value, holder, claimant string }

// conflict notes one.
func (r *resolver) conflict(reason, value, holder, claimant string) {
	r.conflicts = append(r.conflicts, conflict{reason, value, holder, claimant})
}

// cures say what to do about each kind, to whoever reads the claimant's problem.
var cures = map[string]string{
	ReasonPodCIDRConflict:  "packets for it go to %s; delete the Node that should not have it, so that it gets a range of its own",
	ReasonMACConflict:      "packets for it go to %s; delete the flannel device on the node that was cloned, so that it makes a new MAC",
	ReasonKeyConflict:      "packets for it go to %s; a node that was cloned has to make a key of its own: remove /var/lib/weft/wgkey there and restart its agent",
	ReasonPublicIPConflict: "check --iface, --public-ip and the public-ip-overwrite annotation of both, or delete the Node that is gone; the other is %s",
}

// words name the thing in each kind.
var words = map[string]string{
	ReasonPodCIDRConflict: "pod CIDR", ReasonMACConflict: "VTEP MAC", ReasonKeyConflict: "WireGuard key", ReasonPublicIPConflict: "public IP",
}

// reportConflicts tells both sides of each conflict: every claimant once, and every holder once for all its
// claimants, so that 5,000 Nodes with one address are not 5,000 problems of one Node.
func (r *resolver) reportConflicts() {
	slices.SortFunc(r.conflicts, func(a, b conflict) int {
		return cmp.Or(cmp.Compare(a.reason, b.reason), cmp.Compare(a.holder, b.holder), cmp.Compare(a.value, b.value), cmp.Compare(a.claimant, b.claimant))
	})
	r.conflicts = slices.Compact(r.conflicts)
	for i := 0; i < len(r.conflicts); {
		first := r.conflicts[i]
		n := 0
		for ; i+n < len(r.conflicts); n++ {
			c := r.conflicts[i+n]
			if c.reason != first.reason || c.holder != first.holder {
				break
			}
			r.report(subnet.Problem{Node: c.claimant, Reason: c.reason, Yields: true, Value: c.value, Text: fmt.Sprintf(
				"%s %s is also claimed by node %s: "+cures[c.reason], words[c.reason], c.value, c.holder, c.holder)})
		}
		others := "node " + first.claimant
		if n > 1 {
			others += fmt.Sprintf(" and %d more", n-1)
		}
		r.report(subnet.Problem{Node: first.holder, Reason: first.reason, Text: fmt.Sprintf(
			"%s %s is also claimed by %s: "+cures[first.reason], words[first.reason], first.value, others, first.holder)})
		i += n
	}
}

func (r *resolver) report(p subnet.Problem) { r.out.Problems = append(r.out.Problems, p) }
