package scenario

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

// netnsBox is a machine made of a network namespace. What the daemon does goes through kernel.Conn; what the story
// does, and what it checks, goes through the ip and bridge commands.
type netnsBox struct {
	*kernel.Conn
	ns     *nstest.NS
	fabric *nstest.Fabric
	port   int            // of the fabric's switch
	addrs  []netip.Prefix // underlay addresses
}

// newNetnsBox hangs a machine on the fabric.
func newNetnsBox(t testing.TB, f *nstest.Fabric, addrs []netip.Prefix) (*netnsBox, error) {
	b := &netnsBox{ns: f.Add(), fabric: f, port: len(f.Nodes), addrs: addrs}
	b.ns.IP("addr flush dev eth0 scope global") // neighbours are asked for from a link-local one
	b.number()
	conn, err := kernel.OpenAt(b.ns.FD())
	if err != nil {
		return nil, err
	}
	t.Cleanup(conn.Close)
	b.Conn = conn
	return b, nil
}

// number gives the network card its addresses. Those of IPv6 stay when it goes down for a while, as with a network manager.
func (h *netnsBox) number() {
	for _, a := range h.addrs {
		if a.Addr().Is6() {
			h.ns.SetSysctl("net.ipv6.conf."+underlayDevice+".keep_addr_on_down", "1")
		}
		h.ns.IP("addr add " + a.String() + " dev " + underlayDevice)
	}
}

// Do implements Box.
func (h *netnsBox) Do(command string) error {
	switch command {
	case "unplug":
		h.ns.IP("link del eth0")
		return nil
	case "plug":
		h.fabric.Attach(h.ns, underlayDevice, h.fabric.Port(h.port))
		h.number()
		return nil
	}
	_, err := h.ns.Try(strings.Fields(command)...)
	return err
}

// Tables implements Box.
func (h *netnsBox) Tables() (Tables, error) {
	var t Tables
	links, err := h.links()
	if err != nil {
		return t, err
	}
	for _, l := range links {
		if strings.HasPrefix(l.Name, "flannel") {
			t.Link = append(t.Link, l.String())
			if t.FDB, err = h.list(t.FDB, l.Name, "bridge", "fdb", "show", "dev", l.Name); err != nil {
				return t, err
			}
		}
		for _, a := range l.Addrs {
			if strings.HasPrefix(l.Name, "flannel") && a.Scope != "link" {
				t.Addr = append(t.Addr, fmt.Sprintf("%s/%d dev %s", a.Local, a.Bits, l.Name))
			}
		}
	}
	for _, f := range h.families() {
		flag := [2]string{"-4", "-6"}[f]
		if t.Neigh, err = h.list(t.Neigh, "", "ip", flag, "neigh", "show", "nud", "permanent"); err != nil {
			return t, err
		}
		if t.Route, err = h.list(t.Route, "", "ip", flag, "route", "show", "table", "main"); err != nil {
			return t, err
		}
	}
	return t.sorted(), nil
}

// list runs a command and keeps its lines about our devices. bridge leaves the device out when it was asked for one.
func (h *netnsBox) list(lines []string, device string, command ...string) ([]string, error) {
	out, err := h.ns.Try(command...)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		if device != "" && len(words) > 1 {
			words = append([]string{words[0], "dev", device}, words[1:]...)
		}
		text := strings.Join(words, " ")
		if strings.Contains(text, " dev flannel") && !strings.Contains(text, " proto kernel") || strings.Contains(text, " proto 87") {
			lines = append(lines, plain(text))
		}
	}
	return lines, nil
}

// ipLink is a device as `ip -json -details` prints it.
type ipLink struct {
	Name   string   `json:"ifname"`
	Flags  []string `json:"flags"`
	MTU    int      `json:"mtu"`
	MAC    string   `json:"address"`
	Detail struct {
		Kind string `json:"info_kind"`
		Data struct {
			ID       int    `json:"id"`
			Local    string `json:"local"`
			Local6   string `json:"local6"`
			Device   string `json:"link"`
			Port     int    `json:"port"`
			Learning bool   `json:"learning"`
		} `json:"info_data"`
	} `json:"linkinfo"`
	Addrs []struct {
		Family string `json:"family"`
		Local  string `json:"local"`
		Bits   int    `json:"prefixlen"`
		Scope  string `json:"scope"`
	} `json:"addr_info"`
}

// String words the device as the model does.
func (l ipLink) String() string {
	state, learning := "DOWN", "nolearning"
	for _, f := range l.Flags {
		if f == "UP" {
			state = f
		}
	}
	if l.Detail.Data.Learning {
		learning = "learning"
	}
	d := l.Detail.Data
	return fmt.Sprintf("%s %s mtu %d address %s %s id %d local %s dev %s dstport %d %s",
		l.Name, state, l.MTU, l.MAC, l.Detail.Kind, d.ID, d.Local+d.Local6, d.Device, d.Port, learning)
}

func (h *netnsBox) links() ([]ipLink, error) {
	out, err := h.ns.Try("ip", "-json", "-details", "addr", "show")
	if err != nil {
		return nil, err
	}
	var links []ipLink
	if err := json.Unmarshal([]byte(out), &links); err != nil {
		return nil, fmt.Errorf("read the devices of %s: %w", h.ns.Name, err)
	}
	return links, nil
}

// Underlay implements Box: stories have their underlay on eth0.
func (h *netnsBox) Underlay(f subnet.Family) Underlay {
	links, err := h.links()
	if err != nil {
		return Underlay{}
	}
	for _, l := range links {
		for _, a := range l.Addrs {
			addr, err := netip.ParseAddr(a.Local)
			if l.Name == underlayDevice && a.Scope != "link" && err == nil && subnet.FamilyOf(addr) == f {
				return Underlay{Device: l.Name, MTU: l.MTU, Addr: addr}
			}
		}
	}
	return Underlay{}
}

// families are those that the machine has an underlay address of.
func (h *netnsBox) families() []subnet.Family {
	var list []subnet.Family
	for _, a := range h.addrs {
		list = append(list, subnet.FamilyOf(a.Addr()))
	}
	return list
}

// plain takes out of a route what every one of IPv6 has and none of IPv4.
func plain(route string) string {
	return usualMetric.ReplaceAllString(strings.ReplaceAll(route, " pref medium", ""), "")
}

// usualMetric is that of IPv6 routes: 1024, and one less for each time that a route has moved.
var usualMetric = regexp.MustCompile(` metric 10[0-2][0-9]`)

// underlayDevice is the name of the underlay device of every machine.
const underlayDevice = "eth0"
