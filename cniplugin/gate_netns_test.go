package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet/attach"
	"github.com/weft-cni/weft/subnet/ipam"
	"github.com/weft-cni/weft/tests/lane"
)

const gateTable = `table inet weft-gate {
	set held-ipv4 { type ipv4_addr; }
	set held-ipv6 { type ipv6_addr; }
	set free-ipv4 { type ipv4_addr; }
	set free-ipv6 { type ipv6_addr; }
}`

// shut puts the agent's table up.
func (w *world) shut() {
	w.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(gateTable)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.Fatalf("nft: %v: %s", err, out)
	}
	w.Cleanup(func() { _ = exec.Command("nft", "delete", "table", "inet", "weft-gate").Run() })
	notes, _ := attach.Paths(w.file("subnet.env"))
	w.must(notes.Make())
}

// isHeld looks into the kernel.
func (w *world) isHeld(a netip.Addr) bool {
	set := "held-ipv4"
	if a.Is6() {
		set = "held-ipv6"
	}
	return exec.Command("nft", "get", "element", "inet", "weft-gate", set, "{ "+a.String()+" }").Run() == nil
}

func (w *world) notes() []string {
	w.Helper()
	notes, _ := attach.Paths(w.file("subnet.env"))
	names, err := notes.Names()
	w.must(err)
	return names
}

// agent answers the plugin's questions and keeps them.
func (w *world) agent(judge func(attach.Note) error) *asked {
	w.Helper()
	_, path := attach.Paths(w.file("subnet.env"))
	l, err := net.Listen("unix", path)
	w.must(err)
	a, done := &asked{}, make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = attach.Serve(context.Background(), c, func(_ context.Context, n attach.Note) error { a.add(n); return judge(n) })
			}()
		}
	}()
	w.Cleanup(func() { _ = l.Close(); <-done })
	return a
}

type asked struct {
	mu    sync.Mutex // guards notes
	notes []attach.Note
}

func (a *asked) add(n attach.Note) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notes = append(a.notes, n)
}

func (a *asked) all() []attach.Note {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.notes
}

// podArgs names a pod as runtimes do.
func podArgs(name string) func(*skel.CmdArgs, *plugin) {
	return func(args *skel.CmdArgs, p *plugin) {
		args.Args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=" + name + ";K8S_POD_UID=uid-" + name
		p.environ = append(p.environ, "CNI_ARGS="+args.Args)
	}
}

// named is call for a pod that has a name.
func (w *world) named(verb string, p pod, conf []byte) (string, error) {
	var out bytes.Buffer
	args := &skel.CmdArgs{ContainerID: p.id, Netns: p.netns, IfName: p.ifc, Path: w.bin, StdinData: conf}
	pl := newPlugin(context.Background())
	pl.stdout, pl.stderr = &out, &w.stderr
	pl.environ = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+p.id, "CNI_NETNS="+p.netns, "CNI_IFNAME="+p.ifc, "CNI_PATH="+w.bin)
	podArgs("web-"+p.id)(args, &pl)
	f := pl.verbs()
	err := map[string]func(*skel.CmdArgs) error{"ADD": f.Add, "DEL": f.Del}[verb](args)
	return out.String(), err
}

func TestWithoutPoliciesAPodIsNotedAndNobodyIsAsked(t *testing.T) {
	w := newWorld(t)
	p := w.pod("c1")
	if _, err := w.named("ADD", p, w.conf()); err != nil {
		t.Fatal(err)
	}
	if n := w.notes(); len(n) > 0 {
		t.Errorf("no agent wants notes, and there are %q", n)
	}
	w.del(p)
	notes, _ := attach.Paths(w.file("subnet.env"))
	w.must(notes.Make())
	a := w.agent(func(attach.Note) error { return nil })
	if _, err := w.named("ADD", p, w.conf()); err != nil {
		t.Fatal(err)
	}
	n, err := notes.Read("c1@eth0")
	if err != nil || n.Namespace != "shop" || n.Pod != "web-c1" || n.UID != "uid-web-c1" || len(n.Addrs) != len(w.lane.Families()) || len(a.all()) > 0 {
		t.Errorf("note %+v, %v; asked %v", n, err, a.all())
	}
	w.del(p)
	if n := w.notes(); len(n) > 0 {
		t.Errorf("left: %q", n)
	}
	w.empty()
}

func TestAPodUnderPolicyIsHeldUntilItIsJudged(t *testing.T) {
	w := newWorldIn(t, lane.Dual)
	w.shut()
	held := false
	a := w.agent(func(n attach.Note) error {
		held = true
		for _, addr := range n.Addrs {
			held = held && w.isHeld(addr)
		}
		return attach.Free(n.Addrs)
	})
	p := w.pod("c1")
	out, err := w.named("ADD", p, w.conf())
	if err != nil {
		t.Fatal(err)
	}
	all := a.all()
	if len(all) != 1 || !held {
		t.Fatalf("asked %+v; held %t", all, held)
	}
	if d := cmp.Diff(ipam.ResultAddrs([]byte(out)), all[0].Addrs, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" || len(all[0].Addrs) != 2 {
		t.Errorf("addresses (-result +note):\n%s", d)
	}
	// What is recorded is flannel's, without a trace of the gate.
	rec, err := w.records().Read(ipam.Owner{ContainerID: "c1", IfName: "eth0"})
	if err != nil || rec.IPAM.Type != "host-local" || bytes.Contains(rec.Raw, []byte(stageKey)) {
		t.Errorf("record %s, %v", rec.Raw, err)
	}
	w.del(p)
	w.empty()
	if n := w.notes(); len(n) > 0 {
		t.Errorf("left: %q", n)
	}
}

// The delegate asks the stage for an address, and gives it to an interface once it has the answer.
func TestTheStageAnswersWhenTheAddressIsHeld(t *testing.T) {
	w := newWorld(t)
	w.shut()
	p := w.pod("c1")
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"cbr0","type":"bridge","bridge":"cni0","ipam":{"type":"flannel","dataDir":%q,`+
		`"ranges":[[{"subnet":"%s"}]],"weft":{"type":"host-local","subnetFile":%q}}}`, w.file("networks"), lane.PodCIDR(w.lane.First(), 1), w.file("subnet.env"))
	out, err := w.named("ADD", p, []byte(conf))
	if err != nil {
		t.Fatal(err)
	}
	addrs := ipam.ResultAddrs([]byte(out))
	if len(addrs) != 1 || !w.isHeld(addrs[0]) || len(w.notes()) != 1 || w.ports() != 0 {
		t.Errorf("%s: held %v, notes %q, ports %d", out, addrs, w.notes(), w.ports())
	}
	if _, err := w.named("DEL", p, []byte(conf)); err != nil || len(w.reserved()) > 0 {
		t.Errorf("DEL: %v; reserved %q", err, w.reserved())
	}
}

func TestWithoutAnAgentThePodStartsHeld(t *testing.T) {
	w := newWorld(t)
	w.shut()
	p := w.pod("c1")
	out, err := w.named("ADD", p, w.conf())
	if err != nil {
		t.Fatal(err)
	}
	addrs := ipam.ResultAddrs([]byte(out))
	if len(addrs) == 0 || !w.isHeld(addrs[0]) || !w.isHeld(addrs[len(addrs)-1]) || len(w.notes()) != 1 {
		t.Errorf("held %v, notes %q", addrs, w.notes())
	}
	if !strings.Contains(w.stderr.String(), "starts without network") {
		t.Errorf("the runtime's log says %q", w.stderr.String())
	}
	w.del(p)
	w.empty()
}

func TestAnAgentThatRefusesKeepsThePodHeld(t *testing.T) {
	w := newWorld(t)
	w.shut()
	w.agent(func(attach.Note) error { return errors.New("nft says no") })
	out, err := w.named("ADD", w.pod("c1"), w.conf())
	if err != nil {
		t.Fatal(err)
	}
	if addrs := ipam.ResultAddrs([]byte(out)); !w.isHeld(addrs[0]) || !strings.Contains(w.stderr.String(), "nft says no") {
		t.Errorf("held %t; the log says %q", w.isHeld(addrs[0]), w.stderr.String())
	}
}

func TestAFailedAddLeavesNoNote(t *testing.T) {
	w := newWorld(t)
	w.shut()
	w.replace("bridge", `[ "$CNI_COMMAND" = DEL ] && exec "$REAL"; "$REAL" >/dev/null; echo '{"code":7,"msg":"no"}'; exit 1`)
	if out, err := w.named("ADD", w.pod("c1"), w.conf()); err == nil {
		t.Fatal(out)
	}
	w.empty()
	if n := w.notes(); len(n) > 0 {
		t.Errorf("left: %q", n)
	}
}

// A runtime that adds twice by mistake must not lose its pod's note.
func TestASecondAddKeepsTheNoteOfTheFirst(t *testing.T) {
	w := newWorld(t)
	w.shut()
	w.agent(func(n attach.Note) error { return attach.Free(n.Addrs) })
	p := w.pod("c1")
	if _, err := w.named("ADD", p, w.conf()); err != nil {
		t.Fatal(err)
	}
	if out, err := w.named("ADD", p, w.conf()); err == nil {
		t.Fatal(out)
	}
	if n := w.notes(); len(n) != 1 {
		t.Errorf("notes: %q", n)
	}
}

func TestGCTakesNotesAway(t *testing.T) {
	w := newWorld(t)
	w.version = "1.1.0"
	w.shut()
	w.agent(func(n attach.Note) error { return attach.Free(n.Addrs) })
	if _, err := w.named("ADD", w.pod("c1"), w.conf()); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if _, err := w.call("GC", pod{}, w.conf(with("cni.dev/valid-attachments", []any{}))); err != nil {
		t.Fatal(err)
	}
	if n := w.notes(); len(n) > 0 {
		t.Errorf("left: %q", n)
	}
}

func TestAPodWithoutANameIsNotHeld(t *testing.T) {
	w := newWorld(t)
	w.shut()
	p := w.pod("c1")
	for _, a := range w.add(p) {
		if w.isHeld(a) {
			t.Errorf("%s is held: nobody could judge it", a)
		}
	}
	if n := w.notes(); len(n) > 0 {
		t.Errorf("notes: %q", n)
	}
}

func TestStagesGoInAndComeOut(t *testing.T) {
	g := stage{SubnetFile: "/run/flannel/subnet.env"}
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/flannel", nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string]string{
		"host-local": `{"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"type":"host-local"},"name":"cbr0","type":"bridge"}`,
		"another":    `{"ipam":{"type":"dhcp"},"type":"ptp"}`,
	} {
		in := g.into([]byte(raw), "flannel", dir)
		s, out, ok := unstage(in)
		var want, got any
		_, _ = json.Unmarshal([]byte(raw), &want), json.Unmarshal(out, &got)
		if d := cmp.Diff(want, got); !ok || d != "" || s.SubnetFile != g.SubnetFile || bytes.Equal(in, []byte(raw)) {
			t.Errorf("%s: %t %+v (-want +got):\n%s", name, ok, s, d)
		}
	}
	for name, raw := range map[string]string{"no address": `{"type":"bridge"}`, "empty": `{"ipam":{}}`, "odd": `{"ipam":7}`, "none": ``} {
		if out := g.into([]byte(raw), "flannel", dir); string(out) != raw {
			t.Errorf("%s: %s", name, out)
		}
		if _, _, ok := unstage([]byte(raw)); ok {
			t.Errorf("%s: a stage", name)
		}
	}
}

// BenchmarkADDUnderPolicy is ADD and DEL with an agent that answers at once, against the same without policies.
func BenchmarkADDUnderPolicy(b *testing.B) {
	for _, shut := range []bool{false, true} {
		b.Run(fmt.Sprintf("policies=%t", shut), func(b *testing.B) {
			w := newWorld(b)
			if shut {
				w.shut()
				w.agent(func(n attach.Note) error { return attach.Free(n.Addrs) })
			}
			p, took, busy := w.pod("c1"), time.Duration(0), time.Duration(0)
			for b.Loop() {
				began, before := time.Now(), processorTime(b)
				out, err := w.named("ADD", p, w.conf())
				if err != nil {
					b.Fatal(err)
				}
				addrs := ipam.ResultAddrs([]byte(out))
				took, busy = took+time.Since(began), busy+processorTime(b)-before
				w.del(p)
				w.must(attach.Release(addrs)) // as the agent does behind the pod's back
			}
			b.ReportMetric(float64(took.Microseconds())/float64(b.N)/1000, "ms/ADD")
			b.ReportMetric(float64(busy.Microseconds())/float64(b.N)/1000, "processor-ms/ADD")
		})
	}
}

// processorTime is what this process and its children have used, which a busy machine does not change by much.
func processorTime(b *testing.B) (sum time.Duration) {
	b.Helper()
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}
