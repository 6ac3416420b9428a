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

// Settings are the configuration of one node.
type Settings struct {
	VNI  uint32
	Port uint16
	MTU  int // of the underlay, as net-conf's MTU; 0 follows the device
	// Silent says that the port is written in net-conf.json: then peers that announce none are taken to have it, too.
	Silent bool
}

// Underlay is what the model knows of a node's underlay device.
type Underlay struct {
	Device string
	MTU    int
	Addr   netip.Addr
}

// model says what a node's kernel has to hold, straight from the contract: per peer one route, one neighbour and one
// forwarding entry. It shares no code with what it judges.
func model(self Record, set Settings, under Underlay, records []Record) Tables {
	device := fmt.Sprintf("flannel.%d", set.VNI)
	own := netip.MustParsePrefix(self.CIDR)
	mtu := cmp.Or(set.MTU, under.MTU) - 50
	t := Tables{
		Link: []string{fmt.Sprintf("%s UP mtu %d address %s vxlan id %d local %s dev %s dstport %d nolearning",
			device, mtu, self.MAC, set.VNI, under.Addr, under.Device, set.Port)},
		Addr: []string{fmt.Sprintf("%s/32 dev %s", own.Addr(), device)},
	}
	for _, r := range peers(self.Name, own, records) {
		cidr, mac, _ := good(r)
		t.Route = append(t.Route, fmt.Sprintf("%s via %s dev %s proto 87 onlink", cidr, cidr.Addr(), device))
		t.Neigh = append(t.Neigh, fmt.Sprintf("%s dev %s lladdr %s PERMANENT", cidr.Addr(), device, mac))
		t.FDB = append(t.FDB, fmt.Sprintf("%s dev %s dst %s%s self permanent", mac, device, r.IP, port(r, set)))
	}
	return t.sorted()
}

// peers are the Nodes that a node sends to: those that say what they have to, and do not claim what an older one has. A node
// has no better right to what it claims itself, but it never sends to who claims the same.
func peers(self string, own netip.Prefix, records []Record) []Record {
	var list []Record
	var taken []netip.Prefix
	macs := map[subnet.MAC]string{} // and the address that each belongs to
	var ownMAC subnet.MAC
	var ownIP string
	for _, r := range slices.SortedFunc(slices.Values(records), oldest) {
		cidr, mac, ok := good(r)
		if r.Name == self {
			cidr = own
			if ok {
				ownMAC, ownIP = mac, r.IP
			} else {
				mac = subnet.MAC{}
			}
		}
		if r.Name != self && !ok || slices.ContainsFunc(taken, cidr.Overlaps) {
			continue
		}
		if ip, there := macs[mac]; there && mac != (subnet.MAC{}) && ip != r.IP {
			continue
		}
		taken = append(taken, cidr)
		if _, there := macs[mac]; !there {
			macs[mac] = r.IP
		}
		list = append(list, r)
	}
	return slices.DeleteFunc(list, func(r Record) bool {
		cidr, mac, _ := good(r)
		return r.Name == self || cidr.Overlaps(own) || ownIP != "" && (r.IP == ownIP || mac == ownMAC)
	})
}

func oldest(a, b Record) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

// port is how bridge shows a peer's UDP port: not at all when it is the device's own. A peer that does not announce
// one is flannel, which listens on 8472 unless net-conf.json says otherwise.
func port(r Record, set Settings) string {
	peer := cmp.Or(r.Port, "8472")
	if r.Port == "" && set.Silent {
		return ""
	}
	if peer == strconv.Itoa(int(set.Port)) {
		return ""
	}
	return " port " + peer
}

// good reads what makes a Node a peer.
func good(r Record) (netip.Prefix, subnet.MAC, bool) {
	cidr, err := netip.ParsePrefix(r.CIDR)
	if err != nil || cidr != cidr.Masked() || !network.Contains(cidr.Addr()) || cidr.Bits() < network.Bits() {
		return netip.Prefix{}, subnet.MAC{}, false
	}
	data := struct{ VtepMAC string }{r.MAC}
	if r.Data != "" && json.Unmarshal([]byte(r.Data), &data) != nil {
		return netip.Prefix{}, subnet.MAC{}, false
	}
	mac, err := subnet.ParseMAC(data.VtepMAC)
	ip, iperr := netip.ParseAddr(r.IP)
	ok := err == nil && iperr == nil && ip.Is4() && r.Managed == "true" && r.Type == "vxlan"
	return cidr, mac, ok
}

// lines joins a list as a section of a txtar file holds it.
func lines(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return strings.Join(list, "\n") + "\n"
}
