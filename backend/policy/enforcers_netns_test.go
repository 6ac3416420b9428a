package policy_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/tests/nstest"
)

func TestAnotherEnforcerIsNoticed(t *testing.T) {
	ns := nstest.New(t)
	host := netfilter.Host{NetNS: ns.Path()}
	look := func(want ...string) {
		t.Helper()
		got, err := policy.Enforcers(t.Context(), host)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	look()
	ns.Run("nft", "add", "table", "inet", "kube-network-policies")
	ns.Run("nft", "add", "chain", "inet", "kube-network-policies", "forward")
	ns.Run("iptables-nft", "-N", "cali-FORWARD")
	ns.Run("iptables-nft", "-N", "KUBE-FORWARD") // kube-proxy is none
	look("Calico or Canal", "kube-network-policies")
}
