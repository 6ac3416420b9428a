package traffic

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/netfilter"
)

func TestChangesThatConcernUs(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change netfilter.Change
		want   bool
	}{
		{"a rule of ours", netfilter.Change{Kind: unix.NFT_MSG_NEWRULE, Table: "inet weft", Chain: "postrouting"}, true},
		{"an element of ours", netfilter.Change{Kind: unix.NFT_MSG_DELSETELEM, Table: "inet weft"}, true},
		{"our table", netfilter.Change{Kind: unix.NFT_MSG_DELTABLE, Table: "inet weft"}, true},
		{"any new table", netfilter.Change{Kind: unix.NFT_MSG_NEWTABLE, Table: "inet firewalld"}, true},
		{"FORWARD's policy", netfilter.Change{Kind: unix.NFT_MSG_NEWCHAIN, Table: "ip filter", Chain: "FORWARD"}, true},
		{"a rule of FORWARD", netfilter.Change{Kind: unix.NFT_MSG_DELRULE, Table: "ip6 filter", Chain: "FORWARD"}, true},
		{"a rule of INPUT", netfilter.Change{Kind: unix.NFT_MSG_NEWRULE, Table: "ip filter", Chain: "INPUT"}, true},
		{"our iptables chain", netfilter.Change{Kind: unix.NFT_MSG_DELRULE, Table: "ip filter", Chain: chainName}, true},
		{"kube-proxy's chain", netfilter.Change{Kind: unix.NFT_MSG_NEWRULE, Table: "ip filter", Chain: "KUBE-SERVICES"}, false},
		{"kube-proxy's element", netfilter.Change{Kind: unix.NFT_MSG_NEWSETELEM, Table: "ip kube-proxy"}, false},
		{"a set of the filter table", netfilter.Change{Kind: unix.NFT_MSG_NEWSET, Table: "ip filter"}, false},
		{"another family's weft", netfilter.Change{Kind: unix.NFT_MSG_NEWRULE, Table: "ip weft", Chain: "x"}, false},
		{"the end of a transaction", netfilter.Change{End: true}, false},
		{"changes that were lost", netfilter.Change{Lost: true}, true},
	} {
		if got := concerns(tc.change); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
