package kernel_test

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/tests/nstest"
)

func TestPodsSeesNamedNamespacesAndThoseBehindVeths(t *testing.T) {
	host, named, hidden := nstest.New(t), nstest.New(t), nstest.New(t)
	host.Run("ip", "link", "add", "v1", "type", "veth", "peer", "name", "eth0", "netns", hidden.Name)
	host.Run("ip", "addr", "add", "10.244.1.1/24", "dev", "v1")
	hidden.Run("ip", "addr", "add", "10.244.1.3/24", "dev", "eth0")
	hidden.Run("ip", "addr", "add", "fd00::3/64", "dev", "eth0", "nodad")
	named.Run("ip", "link", "add", "d0", "type", "bridge")
	named.Run("ip", "addr", "add", "10.244.1.2/24", "dev", "d0")

	// The folder holds the namespace without a veth only; the other is found through its veth.
	dir := t.TempDir()
	bind(t, named.Path(), dir+"/named")
	bind(t, host.Path(), dir+"/self")
	if err := os.WriteFile(dir+"/plain", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	conn, err := kernel.OpenAt(host.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 2 { // the second time the namespaces have numbers
		pods, err := conn.Pods(dir)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][]string{"host": texts(pods.Host)}
		for _, s := range pods.Spaces {
			name := "behind a veth"
			if len(s.Files) == 1 {
				name = s.Files[0]
			}
			got[name] = texts(s.Addrs)
		}
		want := map[string][]string{"host": {"10.244.1.1"}, "named": {"10.244.1.2"}, "behind a veth": {"10.244.1.3", "fd00::3"}}
		if d := cmp.Diff(want, got); d != "" || len(pods.Blind) != 1 || !pods.DirSeen {
			t.Errorf("blind %q, folder seen %v (-want +got):\n%s", pods.Blind, pods.DirSeen, d)
		}
	}
}

func texts(addrs []netip.Addr) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	slices.Sort(out)
	return out
}

func TestPruneBridgeRemovesTheAddressOfARangeThatIsGone(t *testing.T) {
	host := nstest.New(t)
	host.Pod(0, netip.MustParsePrefix("10.244.8.2/24"))
	for _, a := range []string{"10.244.1.1/24", "10.244.9.1/24", "10.99.0.7/24", "10.98.0.1/16"} {
		host.Run("ip", "addr", "add", a, "dev", "cni0")
	}
	conn, err := kernel.OpenAt(host.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	pods, err := conn.Pods(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	keep := []netip.Prefix{netip.MustParsePrefix("10.244.1.1/24")}
	gone, err := conn.PruneBridge("cni0", keep, pods)
	if err != nil {
		t.Fatal(err)
	}
	// 10.244.8.1 stays, since a pod of that range lives; the last two no bridge plugin made for this node.
	if d := cmp.Diff([]string{"10.244.9.1/24"}, prefixTexts(gone)); d != "" {
		t.Errorf("removed (-want +got):\n%s", d)
	}
	if gone, err := conn.PruneBridge("cni1", keep, pods); err != nil || len(gone) != 0 {
		t.Errorf("no bridge: %v, %v", gone, err)
	}
}

// K-08: a cluster of before with ranges of another length. The plugin refuses every pod while its address is there and ours is not.
func TestPruneBridgeRemovesTheAddressThatAClusterWithOtherRangesLeft(t *testing.T) {
	host := nstest.New(t)
	host.Run("ip", "link", "add", "cni0", "type", "bridge")
	for _, a := range []string{"10.98.0.1/25", "10.97.0.1/16", "10.99.0.7/24", "fd00:98::1/80"} {
		host.Run("ip", "addr", "add", a, "dev", "cni0")
	}
	conn, err := kernel.OpenAt(host.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	keep := []netip.Prefix{netip.MustParsePrefix("10.244.1.1/24"), netip.MustParsePrefix("fd00:244:1::1/64")}
	gone, err := conn.PruneBridge("cni0", keep, kernel.Pods{})
	if err != nil {
		t.Fatal(err)
	}
	// An IPv6 bridge may have several, so that one of another length stands in nobody's way.
	if d := cmp.Diff([]string{"10.98.0.1/25", "10.97.0.1/16"}, prefixTexts(gone)); d != "" {
		t.Errorf("removed (-want +got):\n%s", d)
	}
}

func prefixTexts(in []netip.Prefix) []string {
	var out []string
	for _, p := range in {
		out = append(out, p.String())
	}
	return out
}

// bind gives a namespace one more name.
func bind(t *testing.T, from, to string) {
	t.Helper()
	if err := os.WriteFile(to, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH) })
}
