package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/ipam"
	"github.com/weft-cni/weft/tests/lane"
)

// world is one node: its files in a folder, its bridge named after the test, real delegates.
type world struct {
	testing.TB
	lane    lane.Lane
	dir     string
	bin     string
	bridge  string
	version string
	stderr  said
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldIn(t, lane.Of(t))
}

// newWorldIn is a node of given families, whatever those of the run.
func newWorldIn(t testing.TB, l lane.Lane) *world {
	t.Helper()
	if os.Getenv(inside) == "" {
		t.Skip("needs root and the namespaces of TestMain: the delegates make links")
	}
	w := &world{TB: t, lane: l, dir: t.TempDir(), bin: plugins(t), bridge: "cni0", version: "1.0.0"}
	w.writeNode(1, 0)
	t.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", w.bridge).Run()
		if t.Failed() {
			t.Logf("stderr:\n%s", w.stderr.String())
		}
	})
	return w
}

func (w *world) file(name string) string { return filepath.Join(w.dir, name) }
func (w *world) records() ipam.Records   { return ipam.Records{Dir: w.file("flannel")} }
func (w *world) store() ipam.Store       { return ipam.Store{Dir: w.file("networks/cbr0")} }
func (w *world) write(name, content string) {
	w.Helper()
	path := w.file(name)
	w.must(os.MkdirAll(filepath.Dir(path), 0o755))
	w.must(os.WriteFile(path, []byte(content), 0o600))
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// writeNode writes subnet.env of a node. Its range in each family has 1<<bits addresses; 0 gives it a usual one.
func (w *world) writeNode(n, bits int) {
	w.Helper()
	w.write("subnet.env", string(w.env(n, bits).Render()))
}

func (w *world) env(n, bits int) subnet.Env {
	env := subnet.Env{MTU: 1450, IPMasq: true}
	for _, f := range w.lane.Families() {
		own := lane.PodCIDR(f, n)
		if bits > 0 {
			own = netip.PrefixFrom(own.Addr(), own.Addr().BitLen()-bits)
		}
		env.Networks[f], env.Subnets[f] = lane.Network(f), netip.PrefixFrom(own.Addr().Next(), own.Bits())
	}
	return env
}

// ranges are the node's.
func (w *world) ranges() (out []netip.Prefix) {
	for _, f := range w.lane.Families() {
		out = append(out, lane.PodCIDR(f, 1))
	}
	return out
}

// usable is how many pods a range of 1<<bits addresses has room for.
func (w *world) usable(bits int) int {
	n := 1<<bits - 2 // the network's address, and the gateway's
	if w.lane.Has(subnet.IPv4) {
		n-- // the broadcast address
	}
	return n
}

// at is an address of the node's range, in the first family of the lane.
func (w *world) at(n int) string {
	a := lane.PodCIDR(w.lane.First(), 1).Addr()
	b := a.AsSlice()
	b[len(b)-1] = byte(n)
	a, _ = netip.AddrFromSlice(b)
	return a.String()
}

// conf is the stock configuration, with changes.
func (w *world) conf(changes ...func(map[string]any)) []byte {
	w.Helper()
	c := map[string]any{
		"name": "cbr0", "type": "flannel", "subnetFile": w.file("subnet.env"), "dataDir": w.file("flannel"),
		"delegate": map[string]any{"hairpinMode": true, "isDefaultGateway": true, "bridge": w.bridge},
		"ipam":     map[string]any{"dataDir": w.file("networks")},
	}
	if w.version != "" {
		c["cniVersion"] = w.version
	}
	for _, f := range changes {
		f(c)
	}
	b, err := json.Marshal(c)
	w.must(err)
	return b
}

func with(key string, value any) func(map[string]any) {
	return func(c map[string]any) { c[key] = value }
}

// pod is a namespace and the container that lives in it.
type pod struct {
	id    string
	ifc   string
	netns string
}

func (w *world) pod(id string) pod {
	w.Helper()
	w.run("ip", "netns", "add", id)
	w.Cleanup(func() { _ = exec.Command("ip", "netns", "del", id).Run() })
	return pod{id: id, ifc: "eth0", netns: "/run/netns/" + id}
}

func (w *world) run(name string, args ...string) string {
	w.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		w.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// call is the plugin as a runtime calls it, in this process.
func (w *world) call(verb string, p pod, conf []byte) (string, error) {
	return w.callWith(context.Background(), verb, p, conf, func(*plugin) {})
}

func (w *world) callWith(ctx context.Context, verb string, p pod, conf []byte, tune func(*plugin)) (string, error) {
	var out bytes.Buffer
	args := &skel.CmdArgs{ContainerID: p.id, Netns: p.netns, IfName: p.ifc, Path: w.bin, StdinData: conf}
	pl := newPlugin(ctx)
	pl.stdout, pl.stderr = &out, &w.stderr
	pl.environ = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+p.id, "CNI_NETNS="+p.netns, "CNI_IFNAME="+p.ifc, "CNI_PATH="+w.bin)
	pl.envWait = 200 * time.Millisecond
	tune(&pl)
	f := pl.verbs()
	do := map[string]func(*skel.CmdArgs) error{"ADD": f.Add, "DEL": f.Del, "CHECK": f.Check, "GC": f.GC, "STATUS": f.Status}[verb]
	err := do(args)
	return out.String(), err
}

func (w *world) add(p pod) []netip.Addr {
	w.Helper()
	out, err := w.call("ADD", p, w.conf())
	w.must(err)
	return ipam.ResultAddrs([]byte(out))
}

func (w *world) del(p pod) {
	w.Helper()
	_, err := w.call("DEL", p, w.conf())
	w.must(err)
}

// reserved gives "address owner" lines of host-local's folder, of the first family.
func (w *world) reserved() []string {
	w.Helper()
	out := []string{}
	for _, r := range w.reservations() {
		if subnet.FamilyOf(r.Addr) == w.lane.First() {
			out = append(out, r.Addr.String()+" "+r.Owner.String())
		}
	}
	return out
}

func (w *world) reservations() []ipam.Reservation {
	w.Helper()
	all, err := w.store().List()
	w.must(err)
	return all
}

// recorded names the records.
func (w *world) recorded() []string {
	w.Helper()
	all, err := w.records().List()
	w.must(err)
	out := []string{}
	for _, e := range all {
		out = append(out, e.Name)
	}
	return out
}

// ports names the ports of the bridge.
func (w *world) ports() int {
	out, err := exec.Command("ip", "-o", "link", "show", "master", w.bridge).Output()
	if err != nil {
		return 0
	}
	return strings.Count(string(out), "\n")
}

// empty fails unless nothing is left on the node.
func (w *world) empty() {
	w.Helper()
	if r, f := w.reservations(), w.recorded(); len(r)+len(f) > 0 {
		w.Errorf("left over: reservations %v, records %q", r, f)
	}
	w.until("no bridge port is left", func() bool { return w.ports() == 0 })
}

// replace puts a shell script in the place of a plugin; $REAL is the plugin.
func (w *world) replace(name, script string) {
	w.Helper()
	path := filepath.Join(w.bin, name)
	real, err := os.Readlink(path)
	w.must(err)
	w.must(os.Remove(path))
	w.must(os.WriteFile(path, []byte("#!/bin/sh\nREAL="+real+"\n"+script+"\n"), 0o755))
}

// restore puts the plugin back.
func (w *world) restore(name string) {
	w.Helper()
	w.must(os.Remove(filepath.Join(w.bin, name)))
	w.must(os.Symlink(builtPlugin(w, name), filepath.Join(w.bin, name)))
}

// until waits for a condition. It has a minute, as the kernel takes namespaces of the whole machine down one after the other.
func (w *world) until(what string, ok func() bool) {
	w.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("waited a minute: %s", what)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func wantCode(t testing.TB, err error, code uint, texts ...string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("got %v (%T), want code %d", err, err, code)
		return
	}
	for _, text := range texts {
		if !strings.Contains(e.Msg, text) {
			t.Errorf("got %q, want ... %q", e.Msg, text)
		}
	}
}

// said is what plugins wrote to stderr, many at once.
type said struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// quiet is call for many goroutines at once.
func (w *world) quiet(verb string, p pod, conf []byte) (string, error) {
	return w.callWith(context.Background(), verb, p, conf, func(p *plugin) { p.stderr = io.Discard })
}
