// Package flannelstate makes on a node what flannel v0.28.9 leaves there, and judges whether a flannel that starts on a node
// takes what it finds.
//
// It is written from the contract and shares no code with the product. Start does what flannel does when it starts, in its
// order, so that it serves for the way to weft (a node as flannel left it) and for the way back (a flannel on a node as weft
// left it). The Node's annotations are values; whoever has an API server puts them there.
package flannelstate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
)

// Host runs programs on a node; *nstest.NS is one.
type Host interface {
	Input(stdin string, args ...string) (string, error)
}

// Rules says which of its three ways flannel goes to write rules.
type Rules string

// The ways. iptables over either engine is what flannel's image finds on the host; NFTables is EnableNFTables.
const (
	IPTablesNFT    Rules = "iptables-nft"
	IPTablesLegacy Rules = "iptables-legacy"
	NFTables       Rules = "nftables"
)

// DefaultPort is where a flannel listens whose net-conf.json names no port: the kernel's default.
const DefaultPort = 8472

// Node is a node under flannel, as its net-conf.json and its Node object make it. Its addresses are of one family; a node of two
// has the other one in Also, where nothing but Network, PodCIDR, Addr and MAC is read.
type Node struct {
	Name     string
	Network  netip.Prefix
	PodCIDR  netip.Prefix
	Underlay string     // device
	Addr     netip.Addr // on it
	MAC      string     // of the VXLAN device
	VNI      int
	Port     int // 0: net-conf.json names none
	Rules    Rules
	Root     string // where its files lie; empty means /
	Also     *Node  // the same node in IPv6, when it has both families; nil otherwise
}

// Peer is another node, as its annotations say.
type Peer struct {
	PodCIDR netip.Prefix
	Addr    netip.Addr
	MAC     string
	Also    *Peer // in IPv6, when it has both families
}

// Peer is the node as others see it.
func (n Node) Peer() Peer {
	p := Peer{PodCIDR: n.PodCIDR, Addr: n.Addr, MAC: n.MAC}
	if n.Also != nil {
		also := n.Also.Peer()
		p.Also = &also
	}
	return p
}

// halves are the node in each of its families, each as if it had that one alone.
func (n Node) halves() []Node {
	first := n
	first.Also = nil
	out := []Node{first}
	if n.Also != nil {
		second := first
		second.Network, second.PodCIDR, second.Addr, second.MAC = n.Also.Network, n.Also.PodCIDR, n.Also.Addr, n.Also.MAC
		out = append(out, second)
	}
	return out
}

// in is what flannel calls things in a family.
type in struct {
	ip        string // the command
	device    string // what the device's name begins with
	rules     string // what the programs of iptables begin with
	nft       string // the word in rules
	table     string // of nftables
	multicast string
	env       string // in the keys of subnet.env
	data      string // the annotation of the MAC
	address   string // and that of the public IP
	metric    string // of its routes, as ip prints it
}

func (n Node) in() in {
	if n.Network.Addr().Is6() {
		return in{"-6", "flannel-v6.", "ip6tables", "ip6", "flannel-ipv6", "ff00::/8", "IPV6_", "backend-v6-data", "public-ipv6", " metric 1024"}
	}
	return in{"-4", "flannel.", "iptables", "ip", "flannel-ipv4", "224.0.0.0/4", "", "backend-data", "public-ip", ""}
}

// program is that of iptables which the node's family and engine need.
func (n Node) program() string { return strings.Replace(string(n.Rules), "iptables", n.in().rules, 1) }

// Device is the name of the VXLAN device, in the first family.
func (n Node) Device() string { return fmt.Sprintf("%s%d", n.in().device, n.VNI) }

// Start does what flannel does when it starts: device, addresses, rules, subnet.env, conflist, peers. What is there and fits
// is kept; it returns what did not fit. What flannel does not clean, it leaves.
func (n Node) Start(h Host, peers ...Peer) (remade []string, err error) {
	for _, half := range n.halves() {
		misfits, err := half.device(h)
		remade = append(remade, misfits...)
		if err == nil {
			err = half.address(h)
		}
		if err != nil {
			return remade, err
		}
	}
	for _, step := range []func(Host) error{n.cleanOtherEngine, n.WriteRules} {
		if err := step(h); err != nil {
			return remade, err
		}
	}
	mtu, err := n.mtu(h)
	if err != nil {
		return remade, err
	}
	if err := n.files(mtu); err != nil {
		return remade, err
	}
	for _, p := range peers {
		if err := n.AddPeer(h, p); err != nil {
			return remade, err
		}
	}
	return remade, nil
}

// AddPeer writes a peer's three entries, as flannel does when it sees a Node: always the device's own port.
func (n Node) AddPeer(h Host, p Peer) error {
	for _, half := range n.halves() {
		of := p
		if of.PodCIDR.Addr().Is4() != half.Network.Addr().Is4() && p.Also != nil {
			of = *p.Also
		}
		gateway, device := of.PodCIDR.Masked().Addr().String(), half.Device()
		err := run(h,
			"ip neigh replace "+gateway+" lladdr "+of.MAC+" dev "+device+" nud permanent",
			"bridge fdb replace "+of.MAC+" dev "+device+" dst "+of.Addr.String()+" self permanent",
			"ip route replace "+of.PodCIDR.String()+" via "+gateway+" dev "+device+" onlink",
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// device makes the VXLAN device, or keeps the one that is there if flannel would.
func (n Node) device(h Host) (remade []string, err error) {
	have, there, err := n.look(h)
	if err != nil {
		return nil, err
	}
	misfit := n.misfit(have)
	switch {
	case there && misfit == "":
		return nil, run(h, "ip link set "+n.Device()+" up")
	case there:
		remade = append(remade, misfit)
		if err := run(h, "ip link del "+n.Device()); err != nil {
			return remade, err
		}
	}
	mtu, err := n.mtu(h)
	if err != nil {
		return remade, err
	}
	return remade, run(h,
		fmt.Sprintf("ip link add %s address %s mtu %d type vxlan id %d dev %s local %s dstport %d nolearning",
			n.Device(), n.MAC, mtu, n.VNI, n.Underlay, n.Addr, cmp.Or(n.Port, DefaultPort)),
		"ip link set "+n.Device()+" up")
}

// link is a device in ip's JSON, as far as flannel looks.
type link struct {
	Name    string `json:"ifname"`
	MTU     int    `json:"mtu"`
	Address string `json:"address"`
	Info    struct {
		Kind string `json:"info_kind"`
		Data struct {
			ID    int    `json:"id"`
			Link  string `json:"link"`
			Local string `json:"local"`
			Six   string `json:"local6"`
			Port  int    `json:"port"`
			Group string `json:"group"`
			GBP   bool   `json:"gbp"`
		} `json:"info_data"`
	} `json:"linkinfo"`
}

// look reads the device that is there.
func (n Node) look(h Host) (l link, there bool, err error) {
	out, err := h.Input("", "ip", "-d", "-j", "link", "show", n.Device())
	if err != nil {
		return l, false, nil // ip has one exit code for every complaint; making the device will say more
	}
	var list []link
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 {
		return l, false, fmt.Errorf("read the device %s: %q, %w", n.Device(), out, err)
	}
	return list[0], true, nil
}

// misfit says why flannel would make a device anew, in the words that it logs. MTU and MAC are not compared.
func (n Node) misfit(have link) string {
	d := have.Info.Data
	switch {
	case have.Info.Kind != "vxlan":
		return "link type: " + have.Info.Kind + " vs vxlan"
	case d.ID != n.VNI:
		return fmt.Sprintf("vni: %d vs %d", d.ID, n.VNI)
	case d.Link != n.Underlay:
		return "vtep interface: " + d.Link + " vs " + n.Underlay
	case d.Local+d.Six != n.Addr.String():
		return "vtep (external) IP: " + d.Local + d.Six + " vs " + n.Addr.String()
	case d.Group != "":
		return "vtep group: " + d.Group
	case n.Port > 0 && d.Port != n.Port:
		return fmt.Sprintf("port: %d vs %d", d.Port, n.Port)
	case d.GBP:
		return "gbp: true vs false"
	}
	return ""
}

// address puts the node's address on the device and takes others of the pod network off it.
func (n Node) address(h Host) error {
	first := n.PodCIDR.Masked().Addr()
	own := netip.PrefixFrom(first, first.BitLen())
	out, err := h.Input("", "ip", n.in().ip, "-j", "addr", "show", "dev", n.Device())
	if err != nil {
		return err
	}
	var list []struct {
		Addrs []struct {
			Local netip.Addr `json:"local"`
			Len   int        `json:"prefixlen"`
			Scope string     `json:"scope"`
		} `json:"addr_info"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return fmt.Errorf("read the addresses of %s: %w", n.Device(), err)
	}
	commands := []string{"ip addr replace " + own.String() + " dev " + n.Device()}
	if own.Addr().Is6() {
		commands[0] += " nodad"
	}
	for _, l := range list {
		for _, a := range l.Addrs {
			foreign := n.Network.Contains(a.Local) || a.Local.Is6() && a.Scope != "link"
			if p := netip.PrefixFrom(a.Local, a.Len); p != own && foreign {
				commands = append(commands, "ip addr del "+p.String()+" dev "+n.Device())
			}
		}
	}
	return run(h, commands...)
}

// mtu is the underlay's less the header.
func (n Node) mtu(h Host) (int, error) {
	out, err := h.Input("", "ip", "-j", "link", "show", n.Underlay)
	if err != nil {
		return 0, err
	}
	var list []link
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 {
		return 0, fmt.Errorf("read the device %s: %q, %w", n.Underlay, out, err)
	}
	return list[0].MTU - 50, nil
}

// run runs commands that are split at blanks.
func run(h Host, commands ...string) error {
	for _, c := range commands {
		if _, err := h.Input("", strings.Fields(c)...); err != nil {
			return err
		}
	}
	return nil
}
