package daemon

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/subnet"
)

// procNet makes a /proc/sys/net of plain files.
func procNet(t *testing.T, values map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, value := range values {
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// book is a host's switches with a memory in a folder of the test.
func book(t *testing.T, dir string) switches {
	t.Helper()
	return switchesOf(Paths{SysNet: dir, StateDir: t.TempDir()}, subnet.Writer{})
}

func TestK07SwitchesAreAsTheyWereFoundAfterAnUninstall(t *testing.T) {
	dir := procNet(t, map[string]string{
		"ipv4/ip_forward": "0", "bridge/bridge-nf-call-iptables": "1", "ipv6/conf/all/forwarding": "0", "bridge/bridge-nf-call-ip6tables": "0",
	})
	value := func(path string) string {
		data, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(data))
	}
	s := book(t, dir)
	for range 2 { // a restart finds them on, and must not take that for how they were
		if err := errors.Join(s.ensure(subnet.IPv4), s.ensure(subnet.IPv6)); err != nil {
			t.Fatal(err)
		}
	}
	// Since then the administrator has decided about one of them.
	if err := os.WriteFile(filepath.Join(dir, "ipv6/conf/all/forwarding"), []byte("2"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := s.restoreAll()
	if d := cmp.Diff([]string{"net.bridge.bridge-nf-call-ip6tables=0", "net.ipv4.ip_forward=0"}, got); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	want := [4]string{"0", "1", "2", "0"}
	have := [4]string{value("ipv4/ip_forward"), value("bridge/bridge-nf-call-iptables"), value("ipv6/conf/all/forwarding"), value("bridge/bridge-nf-call-ip6tables")}
	if want != have {
		t.Errorf("want %v, got %v", want, have)
	}
	if again, err := s.restoreAll(); err != nil || len(again) > 0 {
		t.Errorf("a second time: %v, %v", again, err)
	}
}

func TestTheMemoryOfSwitchesIsVoidAfterABootAndNamesNoOtherFiles(t *testing.T) {
	dir := procNet(t, map[string]string{"ipv4/ip_forward": "0", "bridge/bridge-nf-call-iptables": "1", "ipv4/other": "1"})
	s := book(t, dir)
	if err := s.ensure(subnet.IPv4); err != nil {
		t.Fatal(err)
	}
	later := s
	later.book.boot = "another"
	if got, err := later.restoreAll(); err != nil || len(got) > 0 {
		t.Errorf("after a boot: %v, %v", got, err)
	}
	for _, text := range []string{`{"boot":"` + s.book.boot + `","was":{"ipv4/other":"0","../x":"0","ipv6/conf/../accept_ra":"1"}}`, "{", ""} {
		if err := os.WriteFile(s.book.file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.restoreAll(); err != nil || len(got) > 0 {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestD05AMissingModuleIsNamedWithItsCommand(t *testing.T) {
	dir := procNet(t, map[string]string{"ipv4/ip_forward": "1"})
	err := book(t, dir).ensure(subnet.IPv4)
	if err == nil || !strings.Contains(err.Error(), "modprobe br_netfilter") {
		t.Errorf("got %v", err)
	}
}

// A host whose pods are on no bridge needs no br_netfilter.
func TestD05TheModuleIsAskedForOnlyWhereThereIsABridge(t *testing.T) {
	for template, needs := range map[string]bool{
		"":                                   true, // there is none
		"{":                                  true,
		`{"plugins": [{"type": "flannel"}]}`: true,
		`{"plugins": [{"type": "flannel", "delegate": {"type": "bridge"}}]}`:                     true,
		`{"plugins": [{"type": "flannel", "delegate": {"type": "ptp"}}, {"type": "portmap"}]}`:   false,
		`{"plugins": [{"type": "tuning"}, {"type": "flannel", "delegate": {"type": "ipvlan"}}]}`: false,
		`{"plugins": [{"type": "other", "delegate": {"type": "ptp"}}, {"type": "flannel"}]}`:     true,
	} {
		paths := Paths{NetConf: filepath.Join(t.TempDir(), "net-conf.json"), SysNet: procNet(t, map[string]string{"ipv4/ip_forward": "0"}), StateDir: t.TempDir()}
		if template != "" {
			if err := os.WriteFile(paths.CNITemplate(), []byte(template), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s := switchesOf(paths, subnet.Writer{})
		if err := s.ensure(subnet.IPv4); (err != nil) != needs {
			t.Errorf("%s: %v", template, err)
		}
		if on, _ := s.read("ipv4/ip_forward"); on != "1" {
			t.Errorf("%s: ip_forward is %s", template, on)
		}
	}
}

func TestD05ASwitchThatIsOffIsTurnedOn(t *testing.T) {
	dir := procNet(t, map[string]string{"ipv4/ip_forward": "0", "bridge/bridge-nf-call-iptables": "0"})
	if err := book(t, dir).ensure(subnet.IPv4); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"ipv4/ip_forward", "bridge/bridge-nf-call-iptables"} {
		if got, _ := os.ReadFile(filepath.Join(dir, path)); strings.TrimSpace(string(got)) != "1" {
			t.Errorf("%s is %q", path, got)
		}
	}
}

func TestASwitchThatIsOnInAnyWayIsLeftAlone(t *testing.T) {
	dir := procNet(t, map[string]string{"ipv6/conf/all/forwarding": "2", "bridge/bridge-nf-call-ip6tables": "1"})
	if err := book(t, dir).ensure(subnet.IPv6); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "ipv6/conf/all/forwarding")); string(got) != "2\n" {
		t.Errorf("forwarding is now %q", got)
	}
}

func TestAConfiguredSysctlDirectoryWins(t *testing.T) {
	if got := sysctlDir("/x"); got != "/x" {
		t.Errorf("got %q", got)
	}
	if got := sysctlDir(""); !strings.HasSuffix(got, "/proc/sys/net") {
		t.Errorf("got %q", got)
	}
}

func TestForwardingOfADeviceThatSomebodyTurnedOffIsTurnedOnAgain(t *testing.T) {
	dir := procNet(t, map[string]string{
		"ipv4/conf/flannel.1/forwarding": "0", "ipv4/conf/other/forwarding": "0", "ipv6/conf/flannel.1/forwarding": "0",
	})
	s := book(t, dir)
	for _, device := range []string{"flannel.1", "gone"} {
		if err := s.turnIfThere(forwards(subnet.IPv4, device)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"ipv4/conf/flannel.1/forwarding": "1", "ipv4/conf/other/forwarding": "0", "ipv6/conf/flannel.1/forwarding": "0",
	} {
		if data, err := os.ReadFile(filepath.Join(dir, path)); err != nil || strings.TrimSpace(string(data)) != want {
			t.Errorf("%s is %q, %v; want %s", path, data, err, want)
		}
	}
	if off, err := s.restoreAll(); err != nil || len(off) > 0 {
		t.Errorf("an uninstall turns off %v, %v; a device takes its switches with it", off, err)
	}
	if got, want := (sysctl{path: "ipv4/conf/flannel.1/forwarding"}).key(), "net.ipv4.conf.flannel/1.forwarding"; got != want {
		t.Errorf("the switch is called %s, want %s", got, want)
	}
}

func TestADeviceOfOursThatForwardsIsReadyWhereNobodyCanMakeItDeafToRouters(t *testing.T) {
	dir := procNet(t, map[string]string{"ipv6/conf/flannel-v6.1/forwarding": "1", "ipv6/conf/flannel.1/forwarding": "0"})
	s := book(t, dir)
	for _, device := range []string{"flannel-v6.1", "flannel.1"} {
		const one = "/sys/class/net/lo/ifindex" // is 1, and nobody can write it
		if err := os.Symlink(one, filepath.Join(dir, "ipv6/conf", device, "accept_ra")); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.deafen("flannel-v6.1"); err != nil {
		t.Errorf("with forwarding on: %v", err)
	}
	if err := s.deafen("flannel.1"); err == nil {
		t.Error("with forwarding off the device hears routers, and nobody says so")
	}
}

// An agent that is started with its host switches forwarding on before the first advertisement has come, and none would be heard
// from then on. Once there is a default route, the devices that it does not come by are left as they are.
func TestS04AHostThatHasNotHeardItsRouterYetGoesOnListening(t *testing.T) {
	gateway := func(ra bool) kernel.HostRoute {
		return kernel.HostRoute{Dst: netip.MustParsePrefix("::/0"), RA: ra, Hops: []kernel.Hop{{Index: 2}}}
	}
	for name, c := range map[string]struct {
		routes []kernel.HostRoute
		want   []string
	}{
		"no default route yet": {[]kernel.HostRoute{{Dst: netip.MustParsePrefix("0.0.0.0/0")}}, []string{"eth0", "eth1"}},
		"one that was learned": {[]kernel.HostRoute{gateway(true)}, []string{"eth0"}},
		"one set by hand":      {[]kernel.HostRoute{gateway(false)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			fake := kernel.NewFake()
			fake.EditHost(func(h *kernel.Host) {
				h.Routes = c.routes
				h.Links = []kernel.HostLink{
					{Index: 1, Name: "lo", Up: true, Loopback: true}, {Index: 2, Name: "eth0", Kind: "veth", Up: true}, {Index: 3, Name: "eth1", Kind: "device", Up: true},
					{Index: 4, Name: "cni0", Kind: "bridge", Up: true}, {Index: 5, Name: "veth1", Kind: "veth", Up: true, Master: 4},
					{Index: 6, Name: "flannel-v6.1", Kind: "vxlan", Up: true}, {Index: 7, Name: "eth2", Kind: "device"},
				}
			})
			d := newDaemon(Config{Paths: Paths{SysNet: procNet(t, map[string]string{"ipv6/conf/all/forwarding": "0"}), StateDir: t.TempDir()}}, quiet(), nil, Seams{})
			d.plane.kernel = fake
			got, err := d.routers(t.Context(), switchesOf(d.cfg.Paths, d.files), subnet.IPv6)
			if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// An address that a router's advertisements renew ends when nobody listens any more, whoever has set the default route; and a
// route to some network is learned as a default route is.
func TestS04ADeviceWhoseAddressOrRouteComesFromARouterGoesOnListening(t *testing.T) {
	byHand := kernel.HostRoute{Dst: netip.MustParsePrefix("::/0"), Hops: []kernel.Hop{{Index: 2}}}
	host := kernel.Host{
		Routes: []kernel.HostRoute{byHand, {Dst: netip.MustParsePrefix("fd00:77::/48"), RA: true, Hops: []kernel.Hop{{Index: 4}}}},
		Addrs: []kernel.HostAddr{
			{Index: 2, Prefix: netip.MustParsePrefix("fd00:50::1/64"), Permanent: true},
			{Index: 3, Prefix: netip.MustParsePrefix("fd00:51::a/64")}, {Index: 5, Prefix: netip.MustParsePrefix("192.0.2.1/24")},
			{Index: 5, Prefix: netip.MustParsePrefix("fe80::1/64"), LinkLocal: true}, {Index: 6, Prefix: netip.MustParsePrefix("fd00:99::a/64")},
			{Index: 7, Prefix: netip.MustParsePrefix("fd00:99::b/64")},
		},
	}
	for i, name := range []string{"eth0", "eth1", "eth2", "eth3", "cni0", "flannel-v6.1"} {
		host.Links = append(host.Links, kernel.HostLink{Index: i + 2, Name: name, Kind: "device", Up: true})
	}
	fake := kernel.NewFake()
	fake.EditHost(func(h *kernel.Host) { *h = host })
	d := newDaemon(Config{Paths: Paths{SysNet: procNet(t, map[string]string{"ipv6/conf/all/forwarding": "0"}), StateDir: t.TempDir()}}, quiet(), nil, Seams{})
	d.plane.kernel = fake
	got, err := d.routers(t.Context(), switchesOf(d.cfg.Paths, d.files), subnet.IPv6)
	if diff := cmp.Diff([]string{"eth1", "eth2"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// A pod that says it is a router would have all IPv6 of a host that has some, whatever families the cluster has.
func TestNoPodIsARouterForItsHost(t *testing.T) {
	for _, f := range subnet.Families() {
		dir := procNet(t, map[string]string{
			"ipv4/ip_forward": "1", "bridge/bridge-nf-call-iptables": "1", "ipv6/conf/all/forwarding": "1", "bridge/bridge-nf-call-ip6tables": "1",
			"ipv6/conf/cni0/accept_ra": "1", "ipv6/conf/eth0/accept_ra": "1",
		})
		s := switchesOf(Paths{SysNet: dir, StateDir: t.TempDir()}, subnet.Writer{})
		if err := s.ensure(f); err != nil {
			t.Fatal(err)
		}
		pods, _ := s.read("ipv6/conf/cni0/accept_ra")
		if others, _ := s.read("ipv6/conf/eth0/accept_ra"); pods != "0" || others != "1" {
			t.Errorf("%v: accept_ra of the pods' bridge is %s, that of the host's device %s", f, pods, others)
		}
	}
}

func TestS04OurDevicesHearNoRouterWhateverNewDevicesOfTheHostDo(t *testing.T) {
	for _, was := range []string{"0", "1", "2"} {
		s := book(t, procNet(t, map[string]string{"ipv6/conf/flannel-v6.1/accept_ra": was, "ipv6/conf/flannel-v6.1/forwarding": "1"}))
		if err := s.deafen("flannel-v6.1"); err != nil {
			t.Fatal(err)
		}
		if got, _ := s.read("ipv6/conf/flannel-v6.1/accept_ra"); got != "0" {
			t.Errorf("from %s it becomes %s", was, got)
		}
	}
}

func TestS04ADeviceThatHearsARouterGoesOnHearingIt(t *testing.T) {
	files := map[string]string{
		"ipv6/conf/all/forwarding": "0", "bridge/bridge-nf-call-ip6tables": "1", "ipv6/conf/eth0/accept_ra": "1", "ipv6/conf/eth1/accept_ra": "1",
	}
	dir := procNet(t, files)
	s := book(t, dir)
	if err := s.ensure(subnet.IPv6, "eth0"); err != nil {
		t.Fatal(err)
	}
	value := func(path string) string { v, _ := s.read(path); return v }
	if got := value("ipv6/conf/eth0/accept_ra") + value("ipv6/conf/eth1/accept_ra") + value("ipv6/conf/all/forwarding"); got != "211" {
		t.Errorf("got %s", got)
	}
	if _, err := s.restoreAll(); err != nil || value("ipv6/conf/eth0/accept_ra") != "1" {
		t.Errorf("%v; accept_ra is %s after an uninstall", err, value("ipv6/conf/eth0/accept_ra"))
	}
}

func TestS04WhereItCannotGoOnHearingForwardingStaysOff(t *testing.T) {
	dir := procNet(t, map[string]string{"ipv6/conf/all/forwarding": "0", "bridge/bridge-nf-call-ip6tables": "1"})
	if err := os.MkdirAll(filepath.Join(dir, "ipv6/conf/eth0/accept_ra"), 0o755); err != nil { // reads as an error
		t.Fatal(err)
	}
	s := book(t, dir)
	err := s.ensure(subnet.IPv6, "eth0")
	if err == nil || !strings.Contains(err.Error(), "eth0 has its default route from a router") || !s.forwardsOff(subnet.IPv6) {
		t.Errorf("%v; forwarding off: %v", err, s.forwardsOff(subnet.IPv6))
	}
}

// A card that is taken out and put in again, as V-02 has it, begins with accept_ra=1 and forwarding on: deaf.
func TestS04AnUnderlayDeviceThatIsMadeAnewGoesOnHearingItsRouter(t *testing.T) {
	const path = "ipv6/conf/eth0/accept_ra"
	dir := procNet(t, map[string]string{"ipv6/conf/all/forwarding": "0", "bridge/bridge-nf-call-ip6tables": "1", path: "1", "ipv6/conf/eth1/accept_ra": "1"})
	d := newDaemon(Config{Paths: Paths{SysNet: dir, StateDir: t.TempDir()}}, quiet(), nil, Seams{})
	s := switchesOf(d.cfg.Paths, d.files)
	if err := s.ensure(subnet.IPv6, "eth0"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, path), []byte("1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d.plane.routers.Store(&[]string{}) // its route went with it
	routers, err := d.routers(t.Context(), s, subnet.IPv6)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ensure(subnet.IPv6, routers...); err != nil {
		t.Fatal(err)
	}
	if eth0, _ := s.read(path); eth0 != "2" {
		t.Errorf("accept_ra of the new device is %s", eth0)
	}
	if eth1, _ := s.read("ipv6/conf/eth1/accept_ra"); eth1 != "1" {
		t.Errorf("accept_ra of another device is %s", eth1)
	}
}

// Under flannel's manifest nothing below /proc/sys can be written, and some distributions filter strictly by default. As long
// as there is one way to each peer that costs nothing.
func TestAStrictFilterThatNobodyCanSetKeepsNoNodeFromBeingReadyWhileThereIsOneWayToEachPeer(t *testing.T) {
	dir := procNet(t, map[string]string{"ipv4/conf/all/rp_filter": "0", "ipv4/conf/flannel.1/mtu": "1450"})
	const one = "/sys/class/net/lo/ifindex" // is 1, and nobody can write it
	if err := os.Symlink(one, filepath.Join(dir, "ipv4/conf/flannel.1/rp_filter")); err != nil {
		t.Fatal(err)
	}
	s := book(t, dir)
	if err := s.loosen("flannel.1", mesh.Result{}); err != nil {
		t.Errorf("with one way: %v", err)
	}
	for name, mixed := range map[string]mesh.Result{
		"another backend": {Also: subnet.KindsOf(subnet.WireGuard)}, "plain routes": {Plain: []string{"eth0"}},
	} {
		if err := s.loosen("flannel.1", mixed); err == nil || !strings.Contains(err.Error(), "sysctl -w net.ipv4.conf.flannel/1.rp_filter=2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAHostWithoutIPv6IsNamedWithTheCommand(t *testing.T) {
	for device, off := range map[string]bool{"": true, "lo": true, "default": true, "flannel-v6.1": true, "eth0": false} {
		dir := procNet(t, map[string]string{
			"ipv6/conf/all/forwarding": "0", "ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/eth1/disable_ipv6": "1", "bridge/bridge-nf-call-ip6tables": "1",
		})
		if device != "" { // was switched on alone
			file := filepath.Join(dir, "ipv6/conf", device, "disable_ipv6")
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("0\n"), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		err := book(t, dir).ensure(subnet.IPv6)
		if named := err != nil && strings.Contains(err.Error(), "sysctl -w net.ipv6.conf.all.disable_ipv6=0"); named != off || !off && err != nil {
			t.Errorf("with IPv6 on %q: %v", device, err)
		}
	}
}

// S-03: hosts that are to have IPv6 on some cards alone have it off by default, and so for each device that is made.
func TestS03OurDevicesHaveIPv6WhereTheHostHasItOffByDefault(t *testing.T) {
	files := map[string]string{}
	for _, device := range []string{"flannel-v6.1", "flannel-wg", "flannel-v6.ipip", "flannel.1", "flannel-x", "eth1"} {
		files["ipv6/conf/"+device+"/disable_ipv6"] = "1"
	}
	s := book(t, procNet(t, files))
	if err := errors.Join(s.enableDevices(subnet.IPv4), s.enableDevices(subnet.IPv6)); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for path := range files {
		got[path], _ = s.read(path)
	}
	for _, device := range []string{"flannel-v6.1", "flannel-wg", "flannel-v6.ipip"} {
		files["ipv6/conf/"+device+"/disable_ipv6"] = "0"
	}
	if diff := cmp.Diff(files, got); diff != "" {
		t.Errorf("disable_ipv6 (-want +got):\n%s", diff)
	}
}

func TestTheFilterOfAnUnderlayIsLooseForAsLongAsItHasTo(t *testing.T) {
	for _, tc := range []struct{ own, all, want string }{{"1", "0", "2"}, {"0", "1", "2"}, {"0", "0", "0"}, {"2", "1", "2"}} {
		dir := procNet(t, map[string]string{"ipv4/conf/eth0/rp_filter": tc.own, "ipv4/conf/all/rp_filter": tc.all})
		s := book(t, dir)
		if err := s.filter([]string{"eth0"}); err != nil {
			t.Fatal(err)
		}
		if got, _ := s.read("ipv4/conf/eth0/rp_filter"); got != tc.want {
			t.Errorf("%s under %s becomes %s, want %s", tc.own, tc.all, got, tc.want)
		}
		if err := s.filter(nil); err != nil {
			t.Fatal(err)
		}
		if got, _ := s.read("ipv4/conf/eth0/rp_filter"); got != tc.own {
			t.Errorf("%s under %s is %s afterwards", tc.own, tc.all, got)
		}
	}
}
