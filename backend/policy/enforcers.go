package policy

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/netfilter"
)

// enforcers are the marks that others who enforce NetworkPolicies leave in the kernel: tables of nftables, and chains of iptables
// that begin so.
func enforcers() (tables, chains map[string]string) {
	return map[string]string{
			"kube-network-policies": "kube-network-policies", "kindnet-network-policies": "kindnet", "antrea": "Antrea",
		}, map[string]string{
			"cali-": "Calico or Canal", "KUBE-NWPLCY-": "kube-router", "KUBE-ROUTER-FORWARD": "kube-router", "WEAVE-NPC": "Weave Net",
			"CILIUM_": "Cilium", "AZURE-NPM": "Azure NPM", "ANTREA-FORWARD": "Antrea",
		}
}

// Enforcers names who else enforces policies on this node, as far as nftables and iptables over it show.
func Enforcers(ctx context.Context, h netfilter.Host) ([]string, error) {
	text, err := h.List(ctx, "chains")
	if err != nil {
		return nil, err
	}
	return enforcersIn(text)
}

func enforcersIn(text string) ([]string, error) {
	tables, chains := enforcers()
	found := map[string]bool{}
	err := netfilter.Objects(text, func(kind string, o netfilter.Object) {
		if kind != "chain" {
			return
		}
		if who, ok := tables[o.Table]; ok {
			found[who] = true
		}
		for prefix, who := range chains {
			if strings.HasPrefix(o.Name, prefix) {
				found[who] = true
			}
		}
	})
	return slices.Sorted(maps.Keys(found)), err
}
