package backends

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

// row is a backend with its options.
type row struct {
	name string
	s    setup
}

func rows() []row {
	direct := func(s setup) setup {
		s.direct = true
		return s
	}
	out := []row{
		{"vxlan", of(subnet.VXLAN)},
		{"vxlan, DirectRouting", direct(of(subnet.VXLAN))},
		{"host-gw", of(subnet.HostGW)},
		{"ipip", of(subnet.IPIP)},
		{"ipip, DirectRouting", direct(of(subnet.IPIP))},
	}
	for _, mode := range []string{subnet.ModeSeparate, subnet.ModeAuto, subnet.ModeIPv4, subnet.ModeIPv6} {
		out = append(out, row{"wireguard, Mode " + mode, of(subnet.WireGuard).mode(mode)})
	}
	return out
}

// TestEveryBackendCarriesPodsPacketsUpToItsMTU also prints what each backend costs a packet.
func TestEveryBackendCarriesPodsPacketsUpToItsMTU(t *testing.T) {
	nstest.NeedRoot(t)
	table := []string{fmt.Sprintf("%-26s %-5s %-16s %8s %8s  %s", "backend", "pods", "device", "its MTU", "pod MTU", "bytes around a packet")}
	for _, r := range rows() {
		t.Run(strings.ReplaceAll(r.name, ", ", "_"), func(t *testing.T) {
			w := newWorld(t, 2, r.s)
			a, b := w.nodes[0], w.nodes[1]
			result, _ := a.look()
			for _, n := range w.nodes {
				n.setPodMTU(result.PodMTU)
			}
			for _, f := range w.lane.Families() {
				device, mtu := a.way(f)
				table = append(table, fmt.Sprintf("%-26s %-5s %-16s %8d %8d  %d", r.name, f, device, mtu, result.PodMTU, w.overhead(a, b, f)))
				w.fits(a, b, f, result.PodMTU)
			}
		})
	}
	t.Log("\n" + strings.Join(table, "\n"))
}

// setPodMTU gives the pod's devices an MTU, as the CNI plugin does.
func (n *node) setPodMTU(mtu int) {
	port := strings.TrimSpace(strings.SplitN(strings.SplitN(n.IP("-o link show master cni0"), ": ", 3)[1], "@", 2)[0])
	n.IP(fmt.Sprintf("link set %s mtu %d", port, mtu))
	n.IP(fmt.Sprintf("link set cni0 mtu %d", mtu))
	n.pod.IP(fmt.Sprintf("link set eth0 mtu %d", mtu))
}

// way is the device by which packets to the first peer leave in a family, and its MTU.
func (n *node) way(f subnet.Family) (device string, mtu int) {
	to := n.w.nodes[0]
	if to == n {
		to = n.w.nodes[1]
	}
	words := strings.Fields(n.IP("route get " + to.podAddr(f).Addr().String()))
	for i, word := range words {
		if word == "dev" {
			device = words[i+1]
		}
	}
	words = strings.Fields(n.IP("-o link show " + device))
	for i, word := range words {
		if word == "mtu" {
			_, _ = fmt.Sscan(words[i+1], &mtu) // a zero is seen in the table
		}
	}
	return device, mtu
}

// overhead is how many bytes more than the packet leave the node, below Ethernet. The size is one that WireGuard does not pad.
func (w *world) overhead(a, b *node, f subnet.Family) int {
	w.Helper()
	const size = 1008
	capture := a.Capture("eth0")
	more := -1
	nstest.Eventually(w, patience, func() error {
		if r := a.pod.Ping(nstest.Ping{Dst: b.podAddr(f).Addr(), Size: size}, 1); len(r.Lost) > 0 {
			return errors.New(r.String())
		}
		for _, frame := range capture.Frames() {
			if n := len(frame) - 14 - size; n >= 0 && n < 100 {
				more = n
				return nil
			}
		}
		return errors.New("no frame of the size of a ping")
	})
	return more
}

// fits wants packets of the pods' MTU to pass whole.
func (w *world) fits(a, b *node, f subnet.Family, mtu int) {
	w.Helper()
	to := b.podAddr(f).Addr()
	nstest.Eventually(w, patience, func() error {
		if r := a.pod.Ping(nstest.Ping{Dst: to, Size: mtu, DF: true}, 3); len(r.Lost) > 0 {
			return fmt.Errorf("of %d bytes: %s", mtu, r)
		}
		return nil
	})
}

// TestADeviceThatIsRemovedIsBack deletes what carries packets, and its routes, as somebody with root does by mistake.
func TestADeviceThatIsRemovedIsBack(t *testing.T) {
	nstest.NeedRoot(t)
	for _, kind := range []string{subnet.WireGuard, subnet.IPIP} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, 2, of(kind))
			a := w.nodes[0]
			for _, device := range a.devices() {
				a.IP("link del " + device)
				t.Logf("%s is back, with all that is on it, in %v", device, w.settle().Round(10*time.Millisecond))
			}
			for _, f := range w.lane.Families() {
				_, _ = a.Try("ip", "route", "flush", "dev", a.mustWay(f)) // no route is no mistake of ours
				w.settle()
			}
		})
	}
}

func (n *node) mustWay(f subnet.Family) string {
	device, _ := n.way(f)
	return device
}

// eavesdropper finds the packets of pods that can be read on the underlay.
type eavesdropper struct {
	w        *world
	captures []*nstest.Capture
}

// watchTheClear captures what leaves and reaches the nodes, before anything else can see it.
func (w *world) watchTheClear() *eavesdropper {
	w.Helper()
	c := &eavesdropper{w: w}
	for _, n := range w.nodes {
		c.captures = append(c.captures, n.Capture("eth0"))
	}
	return c
}

// count is how many frames carry the addresses of two pods side by side, wherever in the frame: plain, or in a tunnel that
// hides nothing.
func (c *eavesdropper) count() (readable, all int) {
	var pairs []string
	for _, a := range c.w.nodes {
		for _, b := range c.w.nodes {
			for _, f := range c.w.lane.Families() {
				if a != b {
					pairs = append(pairs, raw(a.podAddr(f).Addr())+raw(b.podAddr(f).Addr()))
				}
			}
		}
	}
	for _, capture := range c.captures {
		for _, frame := range capture.Frames() {
			all++
			for _, p := range pairs {
				if strings.Contains(string(frame), p) {
					readable++
					break
				}
			}
		}
	}
	return readable, all
}

// none wants no readable packet among many.
func (c *eavesdropper) none(atLeast int) {
	c.w.Helper()
	readable, all := c.count()
	if readable > 0 || all < atLeast {
		c.w.Errorf("%d of %d packets can be read on the underlay", readable, all)
	}
	c.w.Logf("%d packets on the underlay, %d of them readable", all, readable)
}

func raw(a netip.Addr) string { return string(a.AsSlice()) }

// handshakes are the sessions of a node's peers.
func (n *node) handshakes() map[kernel.WGKey]time.Time {
	n.w.Helper()
	have, err := n.conn.Dump(n.w.Context())
	if err != nil {
		n.w.Fatal(err)
	}
	return have.Handshakes
}
