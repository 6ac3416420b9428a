package kube

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/claim"
)

// ReasonOutdatedPublicIP tells of a Node that announces an address which another one has by now.
const ReasonOutdatedPublicIP = "OutdatedPublicIP"

// holders says which Node has an address, by the addresses that the kubelets report. One that several report is the one's with
// the lowest name, which is as good as any other: who announces it is no stranger to it then.
func holders(v View) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for _, c := range append([]Claim{v.Own}, v.Claims...) {
		for _, a := range c.Addrs {
			if was, there := out[a]; !there || c.Peer.Name < was {
				out[a] = c.Peer.Name
			}
		}
	}
	return out
}

// current takes from a peer what it announces at an address that its kubelet no longer reports and another Node's does. The
// machine was moved and its agent has not said so yet: packets would go to the wrong one. What is more, two machines that
// were given each other's addresses would each wait for the other to give up its own. An address that an administrator has
// said is left alone: behind a NAT it may well be a gateway's.
func (r *resolver) current(p subnet.Peer, c Claim, holder map[netip.Addr]string) subnet.Peer {
	for _, f := range subnet.Families() {
		ip := p.Endpoints[f].PublicIP
		other, taken := holder[ip]
		if !taken || c.Told[f] || slices.Contains(c.Addrs, ip) {
			continue
		}
		r.report(subnet.Problem{Node: p.Name, Reason: ReasonOutdatedPublicIP, Text: fmt.Sprintf(
			"the address %s that it announces is the address of node %s: it counts again when its agent announces the one it has, "+
				"or when the annotation %s says that this is meant", ip, other, claim.KeysOf(f).Overwrite)})
		p.Endpoints[f].PublicIP, p.Endpoints[f].MAC = netip.Addr{}, subnet.MAC{}
	}
	return p
}
