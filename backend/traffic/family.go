package traffic

import "github.com/weft-cni/weft/subnet"

// family is one row of the data that makes the rules of IPv4 and IPv6 differ.
type family struct {
	subnet.Family
	Proto     string // how nft names the header: "ip saddr"
	Addr      string // nft set type of an address
	Set       string // suffix of set names
	Multicast string
	NFProto   string // how nft names the family of a packet
	IPInIP    string // IP protocol of a packet of the family inside another of the same
	// IPInIPNames are what /etc/protocols and iptables call that one.
	IPInIPNames string
	Tool        string // iptables binary of the family
	Names       string // lists the tables that iptables-legacy has loaded in a network namespace
	FlannelNF   string // nft table that flannel's nftables mode leaves
	Socket      int    // socket family and option level of iptables-legacy
	Level       int
}

// families lists both rows in the order in which everything is rendered.
func families() [2]family {
	return [2]family{
		{
			Family: subnet.IPv4, Proto: "ip", Addr: "ipv4_addr", Set: "ipv4", Multicast: "224.0.0.0/4", NFProto: "ipv4", IPInIP: "4", IPInIPNames: "ipencap ipip ipv4", Tool: "iptables",
			Names: "ip_tables_names", FlannelNF: "flannel-ipv4", Socket: afInet, Level: levelIP,
		},
		{
			Family: subnet.IPv6, Proto: "ip6", Addr: "ipv6_addr", Set: "ipv6", Multicast: "ff00::/8", NFProto: "ipv6", IPInIP: "41", IPInIPNames: "ipv6", Tool: "ip6tables",
			Names: "ip6_tables_names", FlannelNF: "flannel-ipv6", Socket: afInet6, Level: levelIPv6,
		},
	}
}
