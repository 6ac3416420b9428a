package policy

import "github.com/weft-cni/weft/subnet"

// family is one row of the data that makes the rules of IPv4 and IPv6 differ.
type family struct {
	subnet.Family
	Proto string // how nft names the header: "ip saddr"
	Addr  string // nft set type of an address
	Set   string // suffix of set names
}

// families lists both rows in the order in which everything is rendered.
func families() [2]family {
	return [2]family{
		{Family: subnet.IPv4, Proto: "ip", Addr: "ipv4_addr", Set: "ipv4"},
		{Family: subnet.IPv6, Proto: "ip6", Addr: "ipv6_addr", Set: "ipv6"},
	}
}
