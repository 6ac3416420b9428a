package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend"
	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/backend/traffic"
	"github.com/weft-cni/weft/backend/underlay"
	"github.com/weft-cni/weft/subnet"
)

func TestAWrongNetConfIsReportedAndAMendedOneIsTaken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "net-conf.json")
	changes := 0
	c := &confFile{path: path, log: quiet(), changed: func() { changes++ }}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.sync(t.Context()); err == nil || c.load() != nil {
		t.Errorf("without a file: %v", err)
	}
	write(`{"Backend": {"Type": "vxlan"}}`)
	for range 2 { // the second read finds the same bytes and says the same
		if err := c.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "Network") {
			t.Errorf("without a Network: %v", err)
		}
	}
	write(plainConf)
	if err := c.sync(t.Context()); err != nil || c.load() == nil || changes != 1 {
		t.Errorf("mended: %v, %d changes", err, changes)
	}
	write(plainConf + "\n")
	if err := c.sync(t.Context()); err != nil || changes != 1 {
		t.Errorf("same content: %v, %d changes", err, changes)
	}
	write(`{`)
	if err := c.sync(t.Context()); err == nil || c.load() == nil {
		t.Errorf("broken later: %v; the last good one has to stay", err)
	}
}

func TestSystemdIsToldOnceTheNodeIsReady(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenPacket("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	d := newDaemon(Config{NotifySocket: path}, quiet(), nil, Seams{})
	for part := range d.board.reasons {
		d.board.set(part, nil)
	}
	if err := d.notify(t.Context()); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	n, _, err := c.ReadFrom(buf)
	if err != nil || string(buf[:n]) != "READY=1" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	if err := notifyReady(t.Context(), ""); err != nil {
		t.Errorf("nobody asked: %v", err)
	}
	if err := notifyReady(t.Context(), path+".gone"); err == nil {
		t.Error("a socket that is gone is no error")
	}
}

func TestALoopThatHangsIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon(Config{}, quiet(), nil, Seams{})
		ctx, cancel := context.WithCancel(t.Context())
		hang := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- d.run(ctx, d.side("stuck", time.Second, func(context.Context) error { <-hang; return nil }))
		}()
		synctest.Wait()
		if err := d.turning.alive(); err != nil {
			t.Errorf("at start: %v", err)
		}
		d.turning.add(&backend.Loop{Name: "slow", Resync: 10 * time.Minute, Sync: func(context.Context) error { return nil }})
		time.Sleep(stuckAfter + time.Second)
		if err := d.turning.alive(); err == nil || !strings.Contains(err.Error(), `"stuck"`) {
			t.Errorf("after five minutes: %v", err)
		}
		close(hang)
		synctest.Wait()
		if err := d.turning.alive(); err != nil {
			t.Errorf("it turns again: %v", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestWaitingForAnotherPartIsNoFailureAndAnErrorIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		d := newDaemon(Config{}, slog.New(slog.NewTextHandler(&log, nil)), nil, Seams{})
		result := errWaitingPlane
		l := d.gate(partRules, time.Minute, func(context.Context) error { return result })
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = d.run(ctx, l) }()
		synctest.Wait()
		if got := d.board.verdict().String(); !strings.Contains(got, "rules: waiting for the data plane") || strings.Contains(log.String(), "sync failed") {
			t.Errorf("board %q, log %q", got, log.String())
		}
		result = errors.New("nft is missing")
		l.Poke()
		time.Sleep(settle)
		synctest.Wait()
		if got := d.board.verdict().String(); !strings.Contains(got, "rules: nft is missing") || !strings.Contains(log.String(), "nft is missing") {
			t.Errorf("board %q, log %q", got, log.String())
		}
		cancel()
		synctest.Wait()
	})
}

func TestUntilTriesAgainUntilItWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon(Config{}, quiet(), nil, Seams{})
		tries := 0
		begin := time.Now()
		ok := d.until(t.Context(), partLock, func(context.Context) error {
			if tries++; tries < 4 {
				return errors.New("taken")
			}
			return nil
		})
		if took := time.Since(begin); !ok || tries != 4 || took > 4*time.Second {
			t.Errorf("ok %v after %d tries and %s", ok, tries, took)
		}
		if strings.Contains(d.board.verdict().String(), partLock) {
			t.Errorf("board: %s", d.board.verdict())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if d.until(ctx, partLock, func(context.Context) error { return errors.New("no") }) {
			t.Error("true although ctx ended first")
		}
	})
}

// planned is what the data plane hands on for one node with one peer.
func planned(t *testing.T) *applied {
	t.Helper()
	conf, _, err := subnet.ParseNetConf([]byte(plainConf))
	if err != nil {
		t.Fatal(err)
	}
	a := &applied{Conf: conf, Snapshot: subnet.Snapshot{
		Self: self("10.244.1.0/24"), Peers: []subnet.Peer{peer("b", 2)}, NodeAddrs: []netip.Addr{netip.MustParseAddr("192.168.50.2")},
	}}
	a.Underlay[0] = underlay.Underlay{Link: "eth0", Index: 2, MTU: 1500, Addr: netip.MustParseAddr("192.168.50.1")}
	a.Net = mesh.Config{
		Kind: subnet.VXLAN, Networks: conf.Networks, VXLAN: mesh.VXLAN{VNI: 1, Port: 4789, MACs: [2]subnet.MAC{{2, 1}}},
		Ends: [2]mesh.End{{PodCIDR: netip.MustParsePrefix("10.244.1.0/24"), Local: a.Underlay[0].Addr, Parent: 2, ParentName: "eth0", UnderlayMTU: 1500}},
	}
	if a.Plan, err = mesh.Plan(mesh.Input{Config: a.Net, Snapshot: a.Snapshot}); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestTheRulesFollowFlagsAndCluster(t *testing.T) {
	r := &rules{cfg: Config{Traffic: Traffic{Masquerade: true, Exclude: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, ExcludeNodes: true, Forward: true, ForwardPlace: "last"}}}
	got := r.config(planned(t))
	want := traffic.Config{
		Nets:       [2]traffic.Net{{Network: netip.MustParsePrefix("10.244.0.0/16"), PodCIDR: netip.MustParsePrefix("10.244.1.0/24")}},
		Masquerade: true, Exclude: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.168.50.2/32")},
		Forward: true, ForwardPlace: traffic.PlaceLast, Port: 4789, Peers: []netip.AddrPort{netip.MustParseAddrPort("192.168.50.2:4789")},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestTheBridgedPodsAreKnownBeforeThePlaneIs(t *testing.T) { // N-17, N-19
	dir := t.TempDir()
	d := &daemon{cfg: Config{Paths: Paths{SubnetFile: filepath.Join(dir, "subnet.env"), NetConf: filepath.Join(dir, "net-conf.json")}}, plane: &plane{}}
	if got := d.bridged(); got != [2]netip.Prefix{} {
		t.Errorf("without subnet.env: %v", got)
	}
	env := "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	if err := os.WriteFile(d.cfg.Paths.SubnetFile, []byte(env), 0o644); err != nil {
		t.Fatal(err)
	}
	want := [2]netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	if got := d.bridged(); got != want {
		t.Errorf("by subnet.env: %v", got)
	}
	d.plane.applied.Store(&applied{Snapshot: subnet.Snapshot{Self: subnet.Self{PodCIDRs: [2]netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")}}}})
	if got := d.bridged(); got[0].String() != "10.244.9.0/24" {
		t.Errorf("by the plane: %v", got)
	}
}

func TestUnderAntiSpoofTheRulesKnowThePeersPods(t *testing.T) {
	got := (&rules{cfg: Config{Traffic: Traffic{AntiSpoof: true}}}).config(planned(t)).Inner
	want := traffic.Inner{Devices: []string{"flannel.1"}, Ranges: [2][]netip.Prefix{{netip.MustParsePrefix("10.244.2.0/24")}}}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestTheRulesKnowByWhichPortsPeersSendWireGuard(t *testing.T) {
	for mode, want := range map[string]uint16{subnet.ModeSeparate: 51820, subnet.ModeAuto: 51820} {
		a := planned(t)
		a.Net.Kind, a.Net.WireGuard = subnet.WireGuard, mesh.WireGuard{Key: subnet.Secret{8, 31: 64}, Conf: subnet.WireGuardConf{Mode: mode, Ports: [2]uint16{51820, 51821}}}
		var err error
		if a.Plan, err = mesh.Plan(mesh.Input{Config: a.Net, Snapshot: a.Snapshot}); err != nil {
			t.Fatal(err)
		}
		if got := (&rules{}).config(a).Listens; !slices.Equal(got[0], []uint16{want}) || got[1] != nil {
			t.Errorf("mode %s: %v", mode, got)
		}
	}
	if got := (&rules{}).config(planned(t)).Listens; got[0] != nil {
		t.Errorf("without WireGuard: %v", got)
	}
}

func TestC02TheFilesWaitForEveryOtherPart(t *testing.T) {
	dir := t.TempDir()
	b := newBoard(quiet(), partRules, partFiles, partAnnounce)
	paths := Paths{NetConf: filepath.Join(dir, "net-conf.json"), SubnetFile: filepath.Join(dir, "run", "subnet.env"), CNIConf: filepath.Join(dir, "absent")}
	collected := 0
	p := &publisher{
		cfg: Config{Paths: paths, Traffic: Traffic{Masquerade: true}}, log: quiet(), board: b, told: newTold(quiet()),
		collect: func(context.Context, *applied) error { collected++; return nil },
		plugins: install.NewKeeper(filepath.Join(dir, "source"), filepath.Join(dir, "bin")),
	}
	a := planned(t)
	if err := p.sync(t.Context(), a); !errors.Is(err, errWaiting) || exists(paths.SubnetFile) {
		t.Errorf("rules are missing, yet: %v", err)
	}
	b.set(partRules, nil)
	if err := p.sync(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(paths.SubnetFile)
	if want := "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"; err != nil || string(got) != want {
		t.Errorf("subnet.env: %q, %v", got, err)
	}
	b.set(partRules, errors.New("nft flush"))
	a.Plan.PodMTU = 1350
	if err := p.sync(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(paths.SubnetFile); !strings.Contains(string(got), "FLANNEL_MTU=1350") || collected != 1 {
		t.Errorf("V-06: a smaller underlay: %q; collected %d times, want 1", got, collected)
	}
}

// ip link set eth0 down; ip link set eth0 up: the IPv4 address is there again, the IPv6 one when the network manager gives it.
func TestS02PodsThatAreMadeWhileIPv6IsAwayForAMomentHaveIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		p := &publisher{cfg: Config{Paths: Paths{SubnetFile: filepath.Join(dir, "subnet.env")}}, log: quiet()}
		conf, _, err := subnet.ParseNetConf([]byte(dualConf))
		if err != nil {
			t.Fatal(err)
		}
		cidr := netip.MustParsePrefix("fd00:10:244:1::/64")
		a := planned(t)
		a.Conf, a.Snapshot.Self.PodCIDRs[subnet.IPv6] = conf, cidr
		set := func(mtu int, end mesh.End) { a.Plan.PodMTU, a.Net.Ends[subnet.IPv6] = mtu, end }
		holds := func(when, ipv6, mtu string) {
			t.Helper()
			if err := p.env(a); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(p.cfg.Paths.SubnetFile)
			want := "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n" + ipv6 + "FLANNEL_MTU=" + mtu + "\nFLANNEL_IPMASQ=false\n"
			if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
				t.Errorf("%s: %v (-want +got):\n%s", when, err, diff)
			}
		}
		const lines = "FLANNEL_IPV6_NETWORK=fd00:10:244::/48\nFLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64\n"
		there := mesh.End{PodCIDR: cidr, Local: netip.MustParseAddr("fd00:50::1"), Parent: 2, ParentName: "eth0", UnderlayMTU: 1500}
		set(1450, mesh.End{})
		holds("IPv6 was never there", "", "1450")
		set(1430, there)
		holds("both", lines, "1430")
		set(1450, mesh.End{})
		holds("IPv6 has gone", lines, "1430")
		time.Sleep(familyPatience - time.Second)
		holds("for minutes", lines, "1430")
		set(1430, there)
		holds("back again", lines, "1430")
		set(1250, mesh.End{})
		holds("IPv6 has gone, and the rest is too narrow for it", "", "1250")
		set(1430, there)
		holds("both again", lines, "1430")
		set(1450, mesh.End{})
		holds("IPv6 has gone again", lines, "1430")
		time.Sleep(familyPatience)
		holds("for too long", "", "1450")
		holds("which stays so", "", "1450")
		set(1430, there)
		holds("and comes", lines, "1430")
		set(1450, mesh.End{})
		a.Conf.Enabled[subnet.IPv6], a.Conf.Networks[subnet.IPv6] = false, netip.Prefix{}
		holds("IPv6 is switched off", "", "1450")
	})
}

func TestAPeerThatFailsForGoodHoldsUpTheFilesForSomeSecondsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := newBoard(quiet(), partPeers)
		paths := Paths{SubnetFile: filepath.Join(dir, "subnet.env"), CNIConf: filepath.Join(dir, "absent")}
		p := &publisher{
			cfg: Config{Paths: paths}, log: quiet(), board: b, told: newTold(quiet()), started: time.Now(),
			collect: func(context.Context, *applied) error { return nil },
		}
		if err := p.sync(t.Context(), planned(t)); !errors.Is(err, errWaiting) {
			t.Errorf("at once: %v", err)
		}
		time.Sleep(peersPatience + time.Second)
		if err := p.sync(t.Context(), planned(t)); err != nil || !exists(paths.SubnetFile) {
			t.Errorf("later: %v", err)
		}
	})
}

func TestATypoInTheConflistsTemplateLeavesThePublishedOneStanding(t *testing.T) {
	dir := t.TempDir()
	b := newBoard(quiet())
	paths := Paths{NetConf: filepath.Join(dir, "net-conf.json"), CNIConf: dir, CNIBin: dir, CNISource: filepath.Join(dir, "none")}
	p := &publisher{cfg: Config{Paths: paths}, log: quiet(), board: b, told: newTold(quiet()), plugins: install.NewKeeper(paths.CNISource, paths.CNIBin)}
	if err := os.WriteFile(paths.CNITemplate(), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := p.cni(t.Context()); err == nil {
		t.Error("nothing is published yet, and a template that cannot be used is no error")
	}
	published := filepath.Join(dir, install.ConflistName)
	if err := os.WriteFile(published, []byte("good"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := p.cni(t.Context()); err != nil {
		t.Errorf("the published one is still true: %v", err)
	}
	if v := b.verdict(); v.Ready || !strings.Contains(v.String(), "cni-conf: parse cni-conf.json") {
		t.Errorf("board: %v", v)
	}
	if v := b.verdictBut(aside()...); !v.Ready {
		t.Errorf("the kubelet is told: %v", v)
	}
	if got, _ := os.ReadFile(published); string(got) != "good" {
		t.Errorf("published: %q", got)
	}
}

// The plugin's word comes with the first pod, when the conflist has long been written.
func TestC21TheConflistNamesWhatThePluginSaysOfTheHost(t *testing.T) {
	dir := t.TempDir()
	paths := Paths{SubnetFile: filepath.Join(dir, "subnet.env"), NetConf: filepath.Join(dir, "net-conf.json"), CNIConf: dir, CNIBin: dir, CNISource: filepath.Join(dir, "none")}
	p := &publisher{cfg: Config{Paths: paths}, log: quiet(), board: newBoard(quiet()), told: newTold(quiet()), plugins: install.NewKeeper(paths.CNISource, paths.CNIBin)}
	for _, name := range []string{"flannel", "bridge", "host-local", "portmap", "bandwidth"} {
		script := "#!/bin/sh\necho '{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"1.0.0\",\"1.1.0\"]}'\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	published := func() string {
		if err := p.cni(t.Context()); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, install.ConflistName))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := published()
	for _, step := range []struct {
		said string
		want bool
	}{{"garbage", false}, {`{"rules":"nftables"}`, true}} {
		if err := os.WriteFile(filepath.Join(dir, subnet.HostName), []byte(step.said), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := published(); strings.Contains(got, `"backend": "nftables"`) != step.want || !step.want && got != before {
			t.Errorf("after %s:\n%s", step.said, got)
		}
	}
}

// `rm -r /etc/cni/net.d`, which kubeadm reset advises, on a node whose agent runs as a service.
func TestC13TheConflistComesBackWithItsDirectory(t *testing.T) {
	dir := t.TempDir()
	paths := Paths{NetConf: filepath.Join(dir, "net-conf.json"), CNIConf: filepath.Join(dir, "net.d"), CNIBin: filepath.Join(dir, "bin"), CNISource: filepath.Join(dir, "source")}
	p := &publisher{cfg: Config{Paths: paths}, log: quiet(), board: newBoard(quiet()), told: newTold(quiet()), plugins: install.NewKeeper(paths.CNISource, paths.CNIBin)}
	for _, made := range []string{paths.CNIConf, paths.CNISource} {
		if err := os.Mkdir(made, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"flannel", "bridge", "host-local", "portmap", "bandwidth"} {
		script := "#!/bin/sh\necho '{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"1.0.0\",\"1.1.0\"]}'\n"
		if err := os.WriteFile(filepath.Join(paths.CNISource, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, gone := range []string{"", paths.CNIConf, paths.CNIBin} {
		if err := os.RemoveAll(gone); err != nil {
			t.Fatal(err)
		}
		if err := p.cni(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !exists(filepath.Join(paths.CNIConf, install.ConflistName)) || !exists(filepath.Join(paths.CNIBin, "bridge")) {
			t.Errorf("without %q: something is missing", gone)
		}
	}
}

// A host with plugins of its own in a directory that nobody may write to, or on a full disk.
func TestC12PluginsThatCannotBeReplacedServePodsAllTheSame(t *testing.T) {
	dir := t.TempDir()
	paths := Paths{NetConf: filepath.Join(dir, "net-conf.json"), CNIConf: filepath.Join(dir, "net.d"), CNIBin: filepath.Join(dir, "bin"), CNISource: filepath.Join(dir, "source")}
	for _, made := range []string{paths.CNIConf, paths.CNIBin, paths.CNISource} {
		if err := os.Mkdir(made, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	plugin := func(dir, name, release string) {
		t.Helper()
		text := "#!/bin/sh\nif [ -z \"$CNI_COMMAND\" ]; then echo 'CNI " + name + " plugin " + release + "'; exit; fi\n" +
			"echo '{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"1.0.0\",\"1.1.0\"]}'\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"flannel", "bridge", "host-local", "portmap", "bandwidth"} {
		plugin(paths.CNISource, name, "v1.10.0")
		if name != "bandwidth" {
			plugin(paths.CNIBin, name, "v1.9.0")
		}
	}
	p := &publisher{cfg: Config{Paths: paths}, log: quiet(), board: newBoard(quiet()), told: newTold(quiet()), plugins: install.NewKeeper(paths.CNISource, paths.CNIBin)}
	p.plugins.Files.Disk = fullDisk{}
	conflist := filepath.Join(paths.CNIConf, install.ConflistName)
	if err := p.cni(t.Context()); err == nil || exists(conflist) || !strings.Contains(err.Error(), "CNI plugin bandwidth is not in "+paths.CNIBin) {
		t.Errorf("one is missing: %v, published: %v", err, exists(conflist))
	}
	plugin(paths.CNIBin, "bandwidth", "v1.9.0")
	if err := p.cni(t.Context()); err != nil || !exists(conflist) {
		t.Errorf("all are there: %v, published: %v", err, exists(conflist))
	}
	if v := p.board.verdict(); v.Ready || !strings.Contains(v.String(), "install plugin bridge") || !strings.Contains(v.String(), "make room") {
		t.Errorf("the board says %v", v)
	}
	p.plugins.Files.Disk = nil
	if err := p.cni(t.Context()); err != nil || !p.board.verdict().Ready {
		t.Errorf("with room: %v, the board says %v", err, p.board.verdict())
	}
}

// apt upgrades kubernetes-cni while the agent waits for the API server: pods of before have to be deleted all the same.
func TestC13PluginsComeBackWhileTheAgentWaits(t *testing.T) {
	dir := t.TempDir()
	paths := Paths{CNIConf: filepath.Join(dir, "net.d"), CNIBin: filepath.Join(dir, "bin"), CNISource: filepath.Join(dir, "source")}
	b := newBoard(quiet(), partFiles, partAPI)
	e := &early{paths: paths, board: b, told: newTold(quiet()), plugins: install.NewKeeper(paths.CNISource, paths.CNIBin)}
	shim := filepath.Join(paths.CNIBin, install.Shim)
	look := func(when string, want bool) {
		t.Helper()
		if err := e.sync(t.Context()); err != nil || exists(shim) != want {
			t.Errorf("%s: %v, the plugin is there: %v", when, err, exists(shim))
		}
	}
	if err := os.Mkdir(paths.CNISource, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(paths.CNISource, install.Shim), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	look("where the directories are not mounted", false)
	if err := os.Mkdir(paths.CNIConf, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		look("while the agent waits", true)
		if err := os.RemoveAll(paths.CNIBin); err != nil {
			t.Fatal(err)
		}
	}
	b.set(partFiles, nil)
	look("when the files have come the other loop does it", false)
	b.set(partFiles, errors.New("full"))
	if err := os.RemoveAll(paths.CNISource); err != nil {
		t.Fatal(err)
	}
	look("outside of the image", false)
}

func TestC16AForeignConfigurationBeforeOursIsNamed(t *testing.T) {
	dir := t.TempDir()
	p := &publisher{cfg: Config{Paths: Paths{CNIConf: dir}}, board: newBoard(quiet())}
	if err := p.foreign(); err != nil {
		t.Error(err)
	}
	broken := filepath.Join(dir, "05-broken.conf")
	if err := os.WriteFile(broken, []byte(`{`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := p.foreign(); err != nil || !strings.Contains(strings.Join(p.board.verdict().Notes, ""), "05-broken.conf is no CNI configuration") {
		t.Errorf("%v, notes %q", err, p.board.verdict().Notes)
	}
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	if err := p.foreign(); err != nil || len(p.board.verdict().Notes) > 0 {
		t.Errorf("%v, notes %q", err, p.board.verdict().Notes)
	}
	if err := os.WriteFile(filepath.Join(dir, "00-bridge.conf"), []byte(`{"name":"x","type":"bridge"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	var events []string
	p.warn = func(_ context.Context, reason, text string) { events = append(events, reason+": "+text) }
	if err := p.shadowed(t.Context()); err == nil || !strings.Contains(err.Error(), "00-bridge.conf") {
		t.Errorf("got %v", err)
	}
	if len(events) != 1 || !strings.Contains(events[0], "ForeignCNIConfiguration: the runtime takes 00-bridge.conf in "+dir) {
		t.Errorf("Events: %q", events)
	}
}

func TestWhatStaysTrueIsSaidOnce(t *testing.T) {
	var log bytes.Buffer
	told := newTold(slog.New(slog.NewTextHandler(&log, nil)))
	lines := func() int { n := strings.Count(log.String(), "\n"); log.Reset(); return n }
	told.list("problem", []string{"a", "b"})
	if n := lines(); n != 2 {
		t.Errorf("%d lines, want 2", n)
	}
	told.list("problem", []string{"a", "b"})
	if n := lines(); n != 0 {
		t.Errorf("%d lines again", n)
	}
	told.list("problem", []string{"b", "c"})
	if n := lines(); n != 1 {
		t.Errorf("%d lines for one new", n)
	}
	told.list("problem", nil)
	told.list("problem", []string{"b"})
	if n := lines(); n != 1 {
		t.Errorf("%d lines for one that came back", n)
	}
	many := make([]string, 100)
	for i := range many {
		many[i] = strings.Repeat("x", i+1)
	}
	told.list("problem", many)
	if n := lines(); n != maxLines+1 {
		t.Errorf("%d lines for a hundred, want %d", n, maxLines+1)
	}
}

func TestTheEffectiveConfigIsOneLineAndItsProblemsAreJoined(t *testing.T) {
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("starting", "config", Config{Iface: Iface{Names: []string{"eth0"}, PublicIP: [2]netip.Addr{netip.MustParseAddr("192.0.2.1")}}})
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "eth0") || !strings.Contains(log.String(), "192.0.2.1") {
		t.Errorf("log: %q", log.String())
	}
	err := Config{Iface: Iface{Regexes: []string{"("}, From: "x", CanReach: "y"}, Health: Health{Port: -1}}.Validate()
	for _, want := range []string{"--iface-regex", "--iface-from", "--iface-can-reach", "--healthz-port", "--iptables-resync", "--forward-rules-place", "--kube-annotation-prefix", "--subnet-file"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not complained of: %v", want, err)
		}
	}
}

func TestPokesArePassedOnUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := make(chan struct{}, 1)
		l := &backend.Loop{Sync: func(context.Context) error { return nil }}
		n := 0
		done := make(chan struct{})
		go func() { defer close(done); pokeOn(t.Context(), from, l.Poke, func() { n++ }) }()
		poke(from)
		poke(from)
		synctest.Wait()
		if n == 0 {
			t.Error("no poke arrived")
		}
		close(from)
		<-done
	})
}
