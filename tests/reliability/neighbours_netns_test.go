package reliability

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/nstest"
)

// setsTheMAC is why rows that make several pods at once may lose a packet, with or without us: the test below
// shows the kernel's part of it.
const setsTheMAC = "each ADD of the CNI project's bridge plugin sets the bridge's MAC to what it is, and Linux then forgets all neighbours behind it; " +
	"a packet that waits for its ARP answer when the next ADD does so is lost (kfree_skb in neigh_destroy, under neigh_changeaddr)"

func TestAPacketThatWaitsForARPIsLostWhenABridgeIsGivenTheMACItHas(t *testing.T) {
	beside(t)
	for _, c := range []struct {
		name string
		sets bool
		want []string
	}{
		{"the MAC is set", true, []string{"second"}},
		{"the MAC is left alone", false, []string{"first", "second"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			node, addr := nstest.New(t), netip.MustParseAddrPort("10.244.1.2:5000")
			pod := node.Pod(1450, netip.PrefixFrom(addr.Addr(), 24))
			in, out := datagramPath(t, node, pod, addr)
			pod.IP("link set eth0 arp off") // the answer takes its time, as on a busy machine
			node.IP("neigh flush dev cni0")
			send(t, out, "first")
			nstest.Eventually(t, patience, func() error { return waitsForARP(node, addr.Addr()) })
			if c.sets {
				_, after, _ := strings.Cut(node.Run("ip", "-o", "link", "show", "cni0"), "link/ether ")
				node.IP("link set cni0 address " + strings.Fields(after)[0])
			}
			pod.IP("link set eth0 arp on")
			send(t, out, "second")
			if have := receiveUntil(t, in, "second"); !slices.Equal(c.want, have) {
				t.Errorf("the pod got %q; want %q", have, c.want)
			}
		})
	}
}

// datagramPath is a socket of a pod and one of its node that sends to it.
func datagramPath(t *testing.T, node, pod *nstest.NS, addr netip.AddrPort) (in, out *net.UDPConn) {
	t.Helper()
	err := pod.Do(func() (err error) {
		in, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(addr))
		return err
	})
	if err == nil {
		t.Cleanup(func() { in.Close() })
		err = node.Do(func() (err error) {
			out, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(addr))
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	return in, out
}

func send(t *testing.T, out *net.UDPConn, text string) {
	t.Helper()
	if _, err := out.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// waitsForARP reports whether a node has asked who has an address and not been told.
func waitsForARP(node *nstest.NS, addr netip.Addr) error {
	entry, err := node.Try("ip", "neigh", "show", addr.String(), "dev", "cni0")
	if err == nil && !strings.Contains(entry, "INCOMPLETE") {
		err = fmt.Errorf("the neighbour is %q: %w", entry, errNotYet)
	}
	return err
}

// receiveUntil gives all that comes up to a text.
func receiveUntil(t *testing.T, in *net.UDPConn, last string) []string {
	t.Helper()
	if err := in.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	var have []string
	packet := make([]byte, 64)
	for !slices.Contains(have, last) {
		n, err := in.Read(packet)
		if err != nil {
			t.Fatal(err)
		}
		have = append(have, string(packet[:n]))
	}
	return have
}
