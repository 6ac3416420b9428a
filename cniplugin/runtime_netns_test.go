package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/ipam"
)

// cni is libcni as a runtime links it, with the plugin as a process.
func (w *world) cni() *libcni.CNIConfig {
	// What libcni makes for nil it makes at the first call, and a kubelet calls side by side.
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}
	return libcni.NewCNIConfigWithCacheDir([]string{w.bin}, w.dir, exec)
}

// list is the stock chain in one version of the specification; "" leaves the version out.
func (w *world) list(version string, chained ...map[string]any) *libcni.NetworkConfigList {
	w.Helper()
	flannel := map[string]any{}
	w.version = version
	w.must(json.Unmarshal(w.conf(), &flannel))
	delete(flannel, "name")
	delete(flannel, "cniVersion")
	plugins := []any{flannel}
	for _, c := range chained {
		plugins = append(plugins, c)
	}
	l := map[string]any{"name": "cbr0", "plugins": plugins}
	if version != "" {
		l["cniVersion"] = version
	}
	b, err := json.Marshal(l)
	w.must(err)
	out, err := libcni.ConfListFromBytes(b)
	w.must(err)
	return out
}

func portmap() map[string]any {
	return map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}}
}

func bandwidth() map[string]any {
	return map[string]any{"type": "bandwidth", "capabilities": map[string]any{"bandwidth": true}}
}

func (p pod) runtimeConf() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: p.id, NetNS: p.netns, IfName: p.ifc,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", p.id}},
	}
}

func TestC17EveryVersionVerbAndChain(t *testing.T) {
	w := newWorld(t)
	ctx, n := context.Background(), 0
	for _, version := range []string{"", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		for name, chain := range map[string][]map[string]any{"alone": nil, "with portmap": {portmap()}, "with portmap and bandwidth": {portmap(), bandwidth()}} {
			if len(chain) > 0 && (version == "0.1.0" || version == "0.2.0" || version == "") {
				continue // a chain needs the prevResult of 0.3.0, which also portmap and bandwidth ask for
			}
			t.Run(version+" "+name, func(t *testing.T) {
				n++
				p := w.pod(fmt.Sprintf("c17-%d", n))
				l, c := w.list(version, chain...), w.cni()
				if _, err := c.ValidateNetworkList(ctx, l); err != nil {
					t.Fatal(err)
				}
				result, err := c.AddNetworkList(ctx, l, p.runtimeConf())
				if err != nil {
					t.Fatal(err)
				}
				if want := max(version, "0.1.0"); result.Version() != want && !(want == "0.1.0" && result.Version() == "0.2.0") {
					t.Errorf("the result has version %s", result.Version())
				}
				w.run("ip", "netns", "exec", p.id, "ping", "-c1", "-W2", w.at(1))
				if err := c.CheckNetworkList(ctx, l, p.runtimeConf()); err != nil && version >= "0.4.0" {
					t.Errorf("CHECK: %v", err)
				}
				if err := c.GetStatusNetworkList(ctx, l); err != nil {
					t.Errorf("STATUS: %v", err)
				}
				keep := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: p.id, IfName: p.ifc}}}
				if err := c.GCNetworkList(ctx, l, keep); err != nil || len(w.reserved()) != 1 {
					t.Errorf("GC: %v, reserved %q", err, w.reserved())
				}
				for range 2 {
					if err := c.DelNetworkList(ctx, l, p.runtimeConf()); err != nil {
						t.Errorf("DEL: %v", err)
					}
				}
				if len(w.reserved())+len(w.recorded()) > 0 {
					t.Errorf("left %q, %q", w.reserved(), w.recorded())
				}
			})
		}
	}
}

func TestC17ARuntimesGCDeletesWhatItHasNoPodFor(t *testing.T) {
	w := newWorld(t)
	ctx, l, c := context.Background(), w.list("1.1.0", portmap()), w.cni()
	p, q := w.pod("gone"), w.pod("stays")
	for _, p := range []pod{p, q} {
		_, err := c.AddNetworkList(ctx, l, p.runtimeConf())
		w.must(err)
	}
	w.write("networks/cbr0/"+w.at(99), "leaked\r\neth0")
	w.settle()
	w.must(c.GCNetworkList(ctx, l, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: q.id, IfName: q.ifc}}}))
	if d := cmp.Diff([]string{w.at(3) + " stays/eth0"}, w.reserved()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// process is the plugin started by hand.
func (w *world) process(verb string, p pod, conf []byte) *exec.Cmd {
	cmd := exec.Command(w.bin + "/flannel")
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+p.id, "CNI_NETNS="+p.netns, "CNI_IFNAME="+p.ifc, "CNI_PATH="+w.bin)
	cmd.Stdin = strings.NewReader(string(conf))
	return cmd
}

func TestC11SIGTERMRollsTheAddBack(t *testing.T) {
	w := newWorld(t)
	w.slow(false)
	p := w.pod("term")
	cmd := w.process("ADD", p, w.conf())
	var out strings.Builder
	cmd.Stdout = &out
	w.must(cmd.Start())
	w.until("the delegate runs", func() bool { return exists(w.file("started")) })
	w.must(cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), `"code": 11`) {
		t.Errorf("%v: %s", err, out.String())
	}
	w.empty()
}

// A runtime that loses patience kills the plugin, not the delegate it started.
func TestC11DelWaitsForTheDelegateOfAKilledAdd(t *testing.T) {
	w := newWorld(t)
	w.slow(false)
	p := w.pod("kill")
	cmd := w.process("ADD", p, w.conf())
	w.must(cmd.Start())
	w.until("the delegate runs", func() bool { return exists(w.file("started")) })
	w.must(cmd.Process.Kill())
	_ = cmd.Wait() // says that it was killed
	_, err := w.callWith(context.Background(), "DEL", p, w.conf(), func(p *plugin) { p.lockWait = 100 * time.Millisecond })
	wantCode(t, err, types.ErrTryAgainLater, "another call works on kill/eth0")
	w.write("go", "")
	w.del(p)
	w.empty()
}

func TestVersionAndAboutSayWhatFlannelsSay(t *testing.T) {
	w := newWorld(t)
	out, err := w.process("VERSION", pod{}, nil).Output()
	want := `{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`
	if d := cmp.Diff(want, strings.TrimSpace(string(out))); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	cmd := exec.Command(w.bin + "/flannel")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	w.must(cmd.Run())
	for _, text := range []string{"CNI Plugin flannel version dev (linux/", ") commit unknown\n", "CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"} {
		if !strings.Contains(stderr.String(), text) {
			t.Errorf("%q lacks %q", stderr.String(), text)
		}
	}
	out, err = w.process("CHECK", pod{id: "a", ifc: "eth0", netns: "/x"}, []byte(`{"name":"cbr0","cniVersion":"0.3.1"}`)).Output()
	if err == nil || !strings.Contains(string(out), "config version does not allow CHECK") || !strings.Contains(string(out), `"code": 1`) {
		t.Errorf("%v: %s", err, out)
	}
}

func TestThePluginIsSmall(t *testing.T) {
	w := newWorld(t)
	info, err := os.Stat(w.bin + "/flannel")
	w.must(err)
	if info.Size() >= 4<<20 {
		t.Errorf("%d bytes, want less than 4 MiB", info.Size())
	}
	t.Logf("%.2f MB", float64(info.Size())/1e6)
}

// count puts counting stand-ins of iptables and nft before the real ones.
func (w *world) count() (calls func() int) {
	w.Helper()
	dir := w.file("counted")
	for _, name := range []string{"iptables", "ip6tables", "iptables-save", "iptables-restore", "nft", "conntrack"} {
		real, err := exec.LookPath(name)
		if err != nil {
			real = "/bin/true"
		}
		w.write("counted/"+name, "#!/bin/sh\necho "+name+" >> "+w.file("calls")+"\nexec "+real+" \"$@\"\n")
		w.must(os.Chmod(filepath.Join(dir, name), 0o755))
	}
	if t, ok := w.TB.(*testing.T); ok {
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	}
	return func() int {
		b, _ := os.ReadFile(w.file("calls"))
		return strings.Count(string(b), "\n")
	}
}

// portmap looks for a working iptables in every call, before it looks whether there are ports, unless it is told what to
// use. The plugin tells the agent what the host has, and the agent names it in the conflist.
func TestC21NoRuleProgramRunsForPodsWithoutPorts(t *testing.T) {
	w := newWorld(t)
	calls := w.count()
	ctx, c := context.Background(), w.cni()
	cycle := func(l *libcni.NetworkConfigList, id string) {
		p := w.pod(id)
		_, err := c.AddNetworkList(ctx, l, p.runtimeConf())
		w.must(err)
		w.must(c.DelNetworkList(ctx, l, p.runtimeConf()))
	}
	plain := w.list("1.0.0", portmap(), bandwidth())
	cycle(plain, "c21-first")
	host, err := subnet.LoadHost(w.file("subnet.env"))
	if err != nil || host.Rules != "iptables" {
		t.Fatalf("told of the host: %+v, %v", host, err)
	}
	text, err := install.NameRules(plain.Bytes, host)
	w.must(err)
	named, err := libcni.ConfListFromBytes(text)
	w.must(err)
	for _, l := range []*libcni.NetworkConfigList{plain, named} {
		before := calls()
		for i := range 10 {
			cycle(l, fmt.Sprintf("c21-%d-%d", len(l.Bytes), i))
		}
		n := calls() - before
		t.Logf("%d calls of rule programs for ten pods, named %v", n, len(l.Bytes) > len(plain.Bytes))
		if l == named && n > 0 {
			t.Errorf("%d calls of rule programs for ten pods without ports", n)
		}
	}
	w.empty()
}

// The word is portmap's own choice, made once: a program that comes later does not change it while pods have ports.
func TestC21TheHostsKindOfRulesIsChosenOnceABootAsPortmapChooses(t *testing.T) {
	w := newWorld(t)
	w.must(os.Mkdir(w.file("path"), 0o755))
	program := func(name, script string) {
		w.write("path/"+name, "#!/bin/sh\n"+script+"\n")
		w.must(os.Chmod(w.file("path/"+name), 0o755))
	}
	told := func(patience time.Duration) string {
		w.Helper()
		_, err := w.callWith(context.Background(), "STATUS", pod{}, w.conf(), func(p *plugin) {
			p.askTime = patience
			p.environ = append(withVars(p.environ, "", map[string]string{"PATH": w.file("path")}), "PATH="+w.file("path"))
		})
		w.must(err)
		host, err := subnet.LoadHost(w.file("subnet.env"))
		w.must(err)
		return host.Rules
	}
	w.version = "1.1.0"
	if got := told(time.Minute); got != "" {
		t.Errorf("a host with neither: %q", got)
	}
	program("nft", "exit 0")
	sleep, err := exec.LookPath("sleep") // not for a script whose PATH has two programs
	w.must(err)
	program("iptables", "exec "+sleep+" 60")
	if got := told(100 * time.Millisecond); got != "" {
		t.Errorf("an iptables that waits for its lock: %q", got)
	}
	w.must(os.Remove(w.file("path/nft")))
	program("iptables", "exit 3")
	if got := told(time.Minute); got != "" {
		t.Errorf("an iptables that does not work: %q", got)
	}
	program("nft", "exit 0")
	if got := told(time.Minute); got != "nftables" {
		t.Errorf("only nft works: %q", got)
	}
	program("iptables", "exit 0")
	if got := told(time.Minute); got != "nftables" {
		t.Errorf("iptables came later: %q", got)
	}
	w.must(os.Remove(w.file("path/nft")))
	if got := told(time.Minute); got != "iptables" {
		t.Errorf("nft went away: %q", got)
	}
	w.write(subnet.HostName, "garbage")
	if got := told(time.Minute); got != "iptables" {
		t.Errorf("after garbage: %q", got)
	}
}

// One pod behind its own Service: the host sends the packet back out of the port it came in by.
func TestC19APodReachesItselfThroughItsService(t *testing.T) {
	w := newWorld(t)
	p := w.pod("c19")
	addr := w.add(p)[0]
	f := w.lane.First()
	w.must(os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+[2]string{"iptables", "ip6tables"}[f], []byte("1"), 0o644))
	vip, ip := [2]string{"10.96.0.10", "fd00:10:96::10"}[f], [2]string{"ip", "ip6"}[f]
	rules := fmt.Sprintf(`table %[3]s svc {
	chain pre { type nat hook prerouting priority -100; %[3]s daddr %[2]s dnat to %[1]s; }
	chain post { type nat hook postrouting priority 100; %[3]s saddr %[1]s %[3]s daddr %[1]s masquerade; }
}`, addr, vip, ip)
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader(rules)
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { w.run("nft", "delete", "table", ip, "svc") })
	service := net.JoinHostPort(vip, "7000")
	var udp, tcp net.Conn
	var got atomic.Int32
	w.within(p, func() error {
		server, err := net.ListenPacket("udp", ":7000")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = server.Close() })
		go echo(server, "c19", &got)
		listener, err := net.Listen("tcp", ":7000")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = listener.Close() })
		if tcp, err = net.DialTimeout("tcp", service, 3*time.Second); err != nil {
			return err
		}
		t.Cleanup(func() { _ = tcp.Close() })
		udp, err = net.Dial("udp", service)
		return err
	})
	defer func() { _ = udp.Close() }()
	for i := range 20 {
		if answer := ask(udp, 3*time.Second); answer != "c19" {
			t.Fatalf("datagram %d: the answer is %q", i, answer)
		}
	}
	if answer := ask(udp, 3*time.Second); answer != "c19" || got.Load() != 21 {
		t.Errorf("%q; %d datagrams came of 21", answer, got.Load())
	}
	if answer := hear(udp, 300*time.Millisecond); answer != "" {
		t.Error("an answer came twice")
	}
	if o := w.run("ip", "-d", "link", "show", "cni0"); strings.Contains(o, "PROMISC") {
		t.Error("the bridge is promiscuous")
	}
	w.del(p)
}

// client is a host beside the node, which has a path to it in each family of the lane.
func (w *world) client(name string) pod {
	w.Helper()
	client := w.pod(name)
	w.run("ip", "link", "add", "toclient", "type", "veth", "peer", "name", "eth0", "netns", name)
	w.Cleanup(func() { w.run("ip", "link", "del", "toclient") })
	w.run("ip", "link", "set", "toclient", "up")
	w.run("ip", "-n", name, "link", "set", "eth0", "up")
	for _, f := range w.lane.Families() {
		w.run("ip", append(strings.Fields("addr add "+hostSide[f]+" dev toclient"), []string{"noprefixroute", "nodad"}[f])...)
		w.run("ip", strings.Fields("route replace "+netip.MustParsePrefix(hostSide[f]).Masked().String()+" dev toclient")...)
		w.run("ip", append(strings.Fields("-n "+name+" addr add "+clientSide[f]+" dev eth0"), []string{"noprefixroute", "nodad"}[f])...)
		w.run("ip", strings.Fields("-n "+name+" route replace "+hostOf(f)+" dev eth0")...)
		w.run("ip", strings.Fields("-n "+name+" route replace default via "+hostOf(f))...)
	}
	return client
}

var (
	hostSide   = [2]string{"192.0.2.1/30", "2001:db8::1/126"}
	clientSide = [2]string{"192.0.2.2/30", "2001:db8::2/126"}
)

func hostOf(f subnet.Family) string { return netip.MustParsePrefix(hostSide[f]).Addr().String() }

func TestTheRuntimesCacheIsReadable(t *testing.T) {
	w := newWorld(t)
	ctx, c := context.Background(), w.cni()
	for i, version := range []string{"0.2.0", "0.3.1", "1.1.0"} {
		p := w.pod(fmt.Sprintf("cache-%d", i))
		l := w.list(version)
		_, err := c.AddNetworkList(ctx, l, p.runtimeConf())
		w.must(err)
		results, unreadable, err := ipam.Results{Dir: w.file("results")}.List()
		w.must(err)
		if len(results) != 1 || len(unreadable) != 0 || len(results[0].Addrs) != len(w.lane.Families()) || results[0].Netns != p.netns || results[0].Owner.ContainerID != p.id || results[0].Network != "cbr0" {
			t.Errorf("%s: %+v, %q", version, results, unreadable)
		}
		w.must(c.DelNetworkList(ctx, l, p.runtimeConf()))
	}
}
