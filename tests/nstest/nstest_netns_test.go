package nstest

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestANamespaceIsRemovedWithItsTest(t *testing.T) {
	NeedRoot(t)
	var path string
	t.Run("inner", func(t *testing.T) {
		path = New(t).Path()
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", path, err)
	}
}

func TestHostsOfAFabricReachEachOther(t *testing.T) {
	f := NewFabric(t, 2)
	a, b := f.Nodes[0], f.Nodes[1]
	for _, dst := range []netip.Addr{f.Addr(2), f.Addr6(2)} {
		r := a.Ping(Ping{Dst: dst}, 20)
		if len(r.Lost) > 0 {
			t.Errorf("ping %s: %s", dst, r)
		}
	}
	at := netip.AddrPortFrom(f.Addr(2), 7000)
	b.TCPEcho(at)
	b.UDPEcho(at)
	for _, network := range []string{"tcp", "udp"} {
		seen, err := a.Seen(network, at, time.Second)
		if err != nil || seen.Addr() != f.Addr(1) {
			t.Errorf("%s echo sees %v, %v", network, seen, err)
		}
	}
}

func TestPingCountsByTheSizeThatPassesWithoutFragments(t *testing.T) {
	f := NewFabric(t, 2)
	a := f.Nodes[0]
	for _, dst := range []netip.Addr{f.Addr(2), f.Addr6(2)} {
		if r := a.Ping(Ping{Dst: dst, Size: 1500, DF: true}, 3); len(r.Lost) > 0 {
			t.Errorf("1500 bytes to %s: %s", dst, r)
		}
		if r := a.Ping(Ping{Dst: dst, Size: 1501, DF: true}, 3); len(r.Lost) != r.Sent {
			t.Errorf("1501 bytes to %s passed a link of 1500: %s", dst, r)
		}
	}
}

func TestAPodReachesItsNodeAndBeyond(t *testing.T) {
	f := NewFabric(t, 2)
	pod := f.Nodes[0].Pod(0, netip.MustParsePrefix("10.244.1.5/24"), netip.MustParsePrefix("fd00:244:1::5/64"))
	f.Nodes[1].IP("route add 10.244.1.0/24 via " + f.Addr(1).String())
	f.Nodes[1].IP("route add fd00:244:1::/64 via " + f.Addr6(1).String())
	for _, dst := range []netip.Addr{netip.MustParseAddr("10.244.1.1"), f.Addr(2), f.Addr6(2)} {
		Eventually(t, 20*time.Second, func() error { return pod.CanPing(dst) })
	}
}

func TestCaptureAndMonitorSeeWhatHappens(t *testing.T) {
	f := NewFabric(t, 2)
	a := f.Nodes[0]
	c, m := a.Capture("eth0"), a.Monitor()
	a.Ping(Ping{Dst: f.Addr(2)}, 1)
	c.Wait(t, time.Second, func(frame []byte) bool { return frame[12] == 8 && frame[13] == 0 && frame[23] == 1 })
	a.IP("route add 10.9.0.0/16 via " + f.Addr(2).String())
	Eventually(t, 10*time.Second, func() error {
		for _, e := range m.Events() {
			if e.Type == unix.RTM_NEWROUTE && strings.HasPrefix(e.String(), "new route") {
				return nil
			}
		}
		return os.ErrNotExist
	})
}

func TestSysctlsAndRulesetsArePerNamespace(t *testing.T) {
	a, b := New(t), New(t)
	a.SetSysctl("net.ipv4.ip_forward", "1")
	if got := a.Sysctl("net.ipv4.ip_forward") + b.Sysctl("net.ipv4.ip_forward"); got != "10" {
		t.Errorf("ip_forward of the two: %s", got)
	}
	a.SetNFT("table inet x { }")
	if !strings.Contains(a.NFT(), "table inet x") || strings.Contains(b.NFT(), "table") {
		t.Errorf("rulesets: %q and %q", a.NFT(), b.NFT())
	}
}

func TestLeftOverNamesOfDeadProcessesAreRemoved(t *testing.T) {
	n := New(t)
	left := n.Path() + "x"
	left = strings.Replace(left, "weft-", "weft-999999", 1) // beyond the largest process id of this kernel
	if err := os.WriteFile(left, nil, 0o400); err != nil {
		t.Fatal(err)
	}
	reap()
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("%s is still there", left)
	}
	if _, err := os.Stat(n.Path()); err != nil {
		t.Errorf("a living process's name is gone: %v", err)
	}
}

func TestAHostTakesItsDefaultRouteFromAnAdvertisementAndLosesItWithForwarding(t *testing.T) {
	f := NewFabric(t, 1)
	host := f.Nodes[0]
	host.SetSysctl("net.ipv6.conf.all.forwarding", "0")
	f.Switch.Advertise("br0", 30*time.Second)
	route := func() string { return host.IP("-6 route show default proto ra") }
	Eventually(t, 10*time.Second, func() error {
		if route() == "" {
			return errors.New("no default route")
		}
		return nil
	})
	host.SetSysctl("net.ipv6.conf.all.forwarding", "1")
	Eventually(t, 10*time.Second, func() error {
		if r := route(); r != "" {
			return errors.New(r)
		}
		return nil
	})
}

// TestAChildThatEndsWithItsParentOutlivesNewNamespaces: what Pdeathsig calls the parent is the thread that started the child,
// so no thread may end while a test runs.
func TestAChildThatEndsWithItsParentOutlivesNewNamespaces(t *testing.T) {
	n := New(t)
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for i := range 50 {
		New(t)
		select {
		case err := <-ended:
			t.Fatalf("the child ended after %d namespaces: %v", i+1, err)
		default:
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("the child ended by itself")
	}
}
