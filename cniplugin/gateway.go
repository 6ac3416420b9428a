package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
)

// gateway is a bridge with the addresses that its pods have as gateways, kept by this plugin in place of its delegate. The
// delegate, told to, would in every call set the bridge's MAC to the one that it has, and Linux forgets all neighbours
// behind an interface whose MAC is set: a packet that waits for its ARP answer at that moment is lost. And it would give
// the bridge an IPv6 address that cannot be used for the first seconds, while the kernel looks for a duplicate of it.
type gateway struct {
	bridge string
	mtu    int            // of a bridge that has to be made; 0 leaves it to the kernel
	addrs  []netip.Prefix // one a family
}

// errLeave tells that the bridge is not as it should be in a way that the delegate has to decide on, or to report.
var errLeave = errors.New("the bridge is left to the delegate")

// ensure makes the bridge, or what is missing of it. When all is there it only looks.
func (g gateway) ensure(c rtnl) error {
	dev, err := g.open(c)
	if err != nil {
		return err
	}
	defer dev.close()
	missing, err := g.missing(c, dev.index)
	if err != nil {
		return err
	}
	if len(missing) > 0 || !dev.up || !dev.pinned() {
		if err := g.mend(c, dev, missing); err != nil {
			return fmt.Errorf("set up the bridge %s: %w", g.bridge, err)
		}
	}
	return g.forward()
}

// open finds the bridge, or makes it.
func (g gateway) open(c rtnl) (device, error) {
	dev, err := openDevice(g.bridge)
	if !errors.Is(err, unix.ENODEV) {
		return dev, err
	}
	if err := c.addBridge(g.bridge, g.mtu, randomMAC()); err != nil {
		return dev, fmt.Errorf("make the bridge %s: %w", g.bridge, err)
	}
	return openDevice(g.bridge)
}

// missing lists the addresses that the bridge lacks, or cannot use yet. It judges other addresses as the delegate does: a
// second one in IPv4, and one of an overlapping range in IPv6, are not for us to say.
func (g gateway) missing(c rtnl, index int) (out []netip.Prefix, err error) {
	for _, want := range g.addrs {
		f := subnet.FamilyOf(want.Addr())
		have, err := c.addrs(index, f)
		if err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", g.bridge, err)
		}
		found := false
		for _, a := range have {
			if a.prefix == want {
				found = !a.unsettled()
				break
			}
			if f == subnet.IPv4 || a.prefix.Overlaps(want) {
				return nil, errLeave
			}
		}
		if !found {
			out = append(out, want)
		}
	}
	return out, nil
}

// mend brings the bridge up with a chosen MAC and its addresses.
func (g gateway) mend(c rtnl, dev device, missing []netip.Prefix) error {
	kind, mac, err := c.link(dev.index)
	if err != nil || kind != "bridge" {
		return errors.Join(err, errLeave)
	}
	if !dev.pinned() {
		if mac == [6]byte{} { // the kernel's, when the last port goes
			mac = randomMAC()
		}
		if err := c.setMAC(dev.index, mac); err != nil {
			return err
		}
	}
	for _, p := range missing {
		if subnet.FamilyOf(p.Addr()) == subnet.IPv6 {
			g.tune()
		}
	}
	if !dev.up {
		if err := c.setUp(dev.index); err != nil {
			return err
		}
	}
	for _, p := range missing {
		var err error
		if subnet.FamilyOf(p.Addr()) == subnet.IPv6 { // one that cannot be used yet stays so, whatever is said of it
			err = c.delAddr(dev.index, p)
		}
		if err := errors.Join(err, c.addAddr(dev.index, p)); err != nil {
			return fmt.Errorf("add %s: %w", p, err)
		}
	}
	return nil
}

// tune sets what IPv6 needs on the bridge: it is on, whatever the host does by default; addresses are nobody else's and
// stay when somebody sets the bridge down and up; and no pod can give the host routes by router advertisements.
func (g gateway) tune() {
	for _, s := range []struct{ name, value string }{{"accept_ra", "0"}, {"accept_dad", "0"}, {"keep_addr_on_down", "1"}, {"disable_ipv6", "0"}} {
		path := "/proc/sys/net/ipv6/conf/" + g.bridge + "/" + s.name
		if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) != s.value {
			_ = os.WriteFile(path, []byte(s.value), 0o644) // what cannot be had shows when the address is added
		}
	}
}

func randomMAC() (mac [6]byte) {
	_, _ = unix.Getrandom(mac[:], 0) // so few bytes come whole; package crypto/rand would add a twentieth to the program
	mac[0] = mac[0]&^1 | 2           // one station's, and of no manufacturer
	return mac
}
