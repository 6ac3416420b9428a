package scenario

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
)

// Tables is what a kernel holds of the overlay, in the words of ip and bridge, one sorted list of lines for each kind.
type Tables struct{ Link, Addr, Neigh, FDB, Route []string }

// kind picks a list by its name in a script.
func (t Tables) kind(name string) ([]string, error) {
	switch name {
	case "link":
		return t.Link, nil
	case "addr":
		return t.Addr, nil
	case "neigh":
		return t.Neigh, nil
	case "fdb":
		return t.FDB, nil
	case "route":
		return t.Route, nil
	}
	return nil, fmt.Errorf("expect %s: want link, addr, neigh, fdb or route", name)
}

func (t Tables) sorted() Tables {
	for _, list := range [][]string{t.Link, t.Addr, t.Neigh, t.FDB, t.Route} {
		slices.Sort(list)
	}
	return t
}

// of is the part of the tables that is about one family.
func (t Tables) of(f subnet.Family) Tables {
	for _, list := range []*[]string{&t.Link, &t.Addr, &t.Neigh, &t.FDB, &t.Route} {
		var own []string
		for _, line := range *list {
			if familyOf(line) == f {
				own = append(own, line)
			}
		}
		*list = own
	}
	return t
}

// familyOf tells the family of a line: by our device's name, or by the range that a route to elsewhere is for.
func familyOf(line string) subnet.Family {
	if strings.Contains(line, "flannel-v6") || strings.HasPrefix(line, "fd") || strings.HasPrefix(line, "blackhole fd") {
		return subnet.IPv6
	}
	return subnet.IPv4
}

// judged is a node whose kernel is compared with the model.
type judged struct {
	Node     Record // with the MACs that its devices have to have
	Settings Settings
	Underlay Underlay
}

// model says what a node's kernel has to hold of one family, straight from the contract: per peer one route, and for those that
// are reached by VXLAN one neighbour and one forwarding entry. It shares no code with what it judges.
func model(f subnet.Family, n judged, records []Record) Tables {
	self, set, under := n.Node, n.Settings, n.Underlay
	var t Tables
	own, err := netip.ParsePrefix(self.Half[f].CIDR)
	if err != nil {
		return t // a node without a range has no part in the family
	}
	device := fmt.Sprintf("%s.%d", [2]string{"flannel", "flannel-v6"}[f], set.VNI)
	mtu := cmp.Or(set.MTU, under.MTU) - [2]int{50, 70}[f]
	if slices.Contains(speaks(self, set.kind()), subnet.VXLAN) {
		t.Link = []string{fmt.Sprintf("%s UP mtu %d address %s vxlan id %d local %s dev %s dstport %d nolearning",
			device, mtu, self.Half[f].MAC, set.VNI, under.Addr, under.Device, set.Port)}
		t.Addr = []string{fmt.Sprintf("%s/%d dev %s", own.Addr(), own.Addr().BitLen(), device)}
	}
	for _, r := range peers(f, self.Name, own, records) {
		cidr, mac, _ := good(f, r)
		switch way(f, self, set, r) {
		case subnet.HostGW:
			t.Route = append(t.Route, fmt.Sprintf("%s via %s dev %s proto 87", cidr, r.Half[f].IP, under.Device))
		case subnet.VXLAN:
			t.Route = append(t.Route, fmt.Sprintf("%s via %s dev %s proto 87 onlink", cidr, cidr.Addr(), device))
			t.Neigh = append(t.Neigh, fmt.Sprintf("%s dev %s lladdr %s PERMANENT", cidr.Addr(), device, mac))
			t.FDB = append(t.FDB, fmt.Sprintf("%s dev %s dst %s%s self permanent", mac, device, r.Half[f].IP, port(r, set)))
		}
	}
	return t.sorted()
}

// speaks lists the backends by which a node is reached: its own, and what it says besides.
func speaks(r Record, own string) []string {
	list := []string{own}
	var also []struct{ Type string }
	if json.Unmarshal([]byte(r.Also), &also) == nil {
		for _, a := range also {
			list = append(list, a.Type)
		}
	}
	return list
}

// way is the backend by which a node reaches a peer: the one that both have, unless DirectRouting of both finds the peer on the
// link; else the better one of those that both speak. The underlay of the stories is one link.
func way(f subnet.Family, self Record, set Settings, r Record) string {
	ours, theirs := speaks(self, set.kind()), speaks(r, r.Type)
	ip, err := netip.ParseAddr(r.Half[f].IP)
	onLink := err == nil && underlayNet(f).Contains(ip)
	order, direct := []string{subnet.HostGW, subnet.VXLAN}, set.Direct && set.kind() == subnet.VXLAN
	if r.Type == set.kind() && !direct {
		order = append([]string{r.Type}, order...)
	}
	for _, kind := range order {
		flannel := direct && r.Type == subnet.VXLAN && r.Port == "" // does the same, and does not say so
		hears := slices.Contains(theirs, kind) || kind == subnet.HostGW && flannel
		if slices.Contains(ours, kind) && hears && (kind != subnet.HostGW || onLink) {
			return kind
		}
	}
	return ""
}

// peers are the Nodes that a node sends to in a family: those that say what they have to, and do not claim what an older one
// has. A node has no better right to what it claims itself, but it never sends to who claims the same. What a Node says of the
// other family does not matter.
func peers(f subnet.Family, self string, own netip.Prefix, records []Record) []Record {
	var list []Record
	var taken []netip.Prefix
	macs := map[subnet.MAC]string{} // and the address that each belongs to
	var ownMAC subnet.MAC
	var ownIP string
	for _, r := range slices.SortedFunc(slices.Values(records), oldest) {
		cidr, mac, ok := good(f, r)
		ip := r.Half[f].IP
		if r.Name == self {
			cidr = own
			if ok {
				ownMAC, ownIP = mac, ip
			} else {
				mac = subnet.MAC{}
			}
		}
		if r.Name != self && !ok || slices.ContainsFunc(taken, cidr.Overlaps) {
			continue
		}
		if other, there := macs[mac]; there && mac != (subnet.MAC{}) && other != ip {
			continue
		}
		taken = append(taken, cidr)
		if _, there := macs[mac]; !there {
			macs[mac] = ip
		}
		list = append(list, r)
	}
	return slices.DeleteFunc(list, func(r Record) bool {
		cidr, mac, _ := good(f, r)
		return r.Name == self || cidr.Overlaps(own) || ownIP != "" && (r.Half[f].IP == ownIP || mac == ownMAC && mac != (subnet.MAC{}))
	})
}

func oldest(a, b Record) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

// port is how bridge shows a peer's UDP port: not at all when it is the device's own. A peer that does not announce
// one is flannel, which listens on 8472 unless net-conf.json says otherwise.
func port(r Record, set Settings) string {
	r.Port = announcedPort(r)
	peer := cmp.Or(r.Port, "8472")
	if r.Port == "" && set.Silent {
		return ""
	}
	if peer == strconv.Itoa(int(set.Port)) {
		return ""
	}
	return " port " + peer
}

// announcedPort is the port that a node announces, in the place where it does.
func announcedPort(r Record) string {
	var also []struct {
		Type string
		Port int
	}
	_ = json.Unmarshal([]byte(r.Also), &also) // what cannot be read says nothing
	for _, a := range also {
		if a.Type == subnet.VXLAN && a.Port != 0 {
			return strconv.Itoa(a.Port)
		}
	}
	return r.Port
}

// good reads what makes a Node a peer in a family.
func good(f subnet.Family, r Record) (netip.Prefix, subnet.MAC, bool) {
	h, network := r.Half[f], lane.Network(f)
	cidr, err := netip.ParsePrefix(h.CIDR)
	if err != nil || cidr != cidr.Masked() || !network.Contains(cidr.Addr()) || cidr.Bits() < network.Bits() {
		return netip.Prefix{}, subnet.MAC{}, false
	}
	data := struct{ VtepMAC string }{h.MAC}
	if h.Data != "" && json.Unmarshal([]byte(h.Data), &data) != nil {
		return netip.Prefix{}, subnet.MAC{}, false
	}
	mac, err := subnet.ParseMAC(data.VtepMAC)
	ip, iperr := netip.ParseAddr(h.IP)
	ok := iperr == nil && subnet.FamilyOf(ip) == f && r.Managed == "true"
	switch r.Type {
	case subnet.VXLAN:
		return cidr, mac, ok && err == nil
	case subnet.HostGW: // it may speak VXLAN besides
		return cidr, alsoMAC(f, r), ok
	}
	return cidr, mac, false
}

// alsoMAC is the MAC of a node that speaks VXLAN besides its own backend.
func alsoMAC(f subnet.Family, r Record) subnet.MAC {
	var also []struct {
		Type         string
		Data, V6Data struct{ VtepMAC string }
	}
	_ = json.Unmarshal([]byte(r.Also), &also) // what cannot be read says nothing
	for _, a := range also {
		if mac, err := subnet.ParseMAC([2]string{a.Data.VtepMAC, a.V6Data.VtepMAC}[f]); a.Type == subnet.VXLAN && err == nil {
			return mac
		}
	}
	return subnet.MAC{}
}

// lines joins a list as a section of a txtar file holds it.
func lines(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return strings.Join(list, "\n") + "\n"
}
