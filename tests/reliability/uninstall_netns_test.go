package reliability

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/subnet/ipam"
	"github.com/weft-cni/weft/tests/flannelstate"
	"github.com/weft-cni/weft/tests/lane"
)

// K-07: after an uninstall nothing of ours is left, wherever one was interrupted before, and another network works in its place.
func TestK07AnUninstallLeavesNothingAndAnotherNetworkTakesItsPlace(t *testing.T) {
	beside(t)
	b := NewBench(t, NewSite(t), 2)
	var found []string
	for _, s := range switches(b.Lane) {
		found = append(found, s+" = 0")
	}
	slices.Sort(found)
	for _, n := range b.Nodes {
		n.Agent.Kill()
		uninstall(t, n)
		for _, s := range switches(b.Lane) { // as on a machine on which nobody has turned them on yet
			n.NS.SetSysctl(s, "0")
		}
	}
	runtimes := map[*Node]*Runtime{}
	for i, n := range b.Nodes {
		r, err := NewRuntime(n)
		if err != nil {
			t.Fatal(err)
		}
		runtimes[n] = r
		for pod := range 3 {
			if _, err := r.Add(t.Context(), fmt.Sprintf("before-%d-%d", i, pod)); err != nil {
				t.Fatal(err)
			}
		}
		there := strings.Join(left(t, b, n), "\n") // what sees nothing now would see nothing afterwards
		kinds := []string{"device cni0", "route ", "rule ", "file ", "annotation ", "condition "}
		for _, f := range b.Lane.Families() {
			kinds = append(kinds, "device "+device(f), [2]string{"ip_forward = 1", "all.forwarding = 1"}[f])
		}
		for _, kind := range kinds {
			if !strings.Contains(there, kind) {
				t.Errorf("%s: no %q among\n%s", n.Name, kind, there)
			}
		}
		for pod := range 3 {
			if err := r.Del(t.Context(), fmt.Sprintf("before-%d-%d", i, pod)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, n := range b.Nodes {
		bare(t, n)
		uninstall(t, n)
		if d := cmp.Diff(found, left(t, b, n)); d != "" {
			t.Errorf("%s (-as found +left):\n%s", n.Name, d)
		}
		if said := uninstall(t, n); strings.Contains(said, "removed") {
			t.Errorf("a second uninstall did something:\n%s", said)
		}
	}
	t.Run("interrupted anywhere", func(t *testing.T) { interrupt(t, b, found) })
	t.Run("another network", func(t *testing.T) { another(t, b, runtimes) })
}

// switches are the sysctls of the host that an agent turns on.
func switches(l lane.Lane) []string {
	var out []string
	for _, f := range l.Families() {
		out = append(out, [2][]string{
			{"net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables"}, {"net.ipv6.conf.all.forwarding", "net.bridge.bridge-nf-call-ip6tables"},
		}[f]...)
	}
	return out
}

// bare takes the bench's own pod and the agent away.
func bare(t *testing.T, n *Node) {
	t.Helper()
	n.Agent.Kill()
	for line := range strings.Lines(n.NS.IP("-o link show master cni0")) {
		name, _, _ := strings.Cut(strings.Fields(line)[1], "@")
		n.NS.IP("link del " + name)
	}
}

// uninstall runs the verb to its end, and returns what it said.
func uninstall(t *testing.T, n *Node) string {
	t.Helper()
	cmd := n.Agent.Command(Options{})
	cmd.Args = append([]string{cmd.Path, "uninstall"}, cmd.Args[1:]...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := n.NS.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("uninstall on %s: %v\n%s", n.Name, err, said.String())
	}
	return said.String()
}

// left lists what is on a node that a bare machine with a cable does not have, and its switches.
func left(t *testing.T, b *Bench, n *Node) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(n.NS.IP("-o link show")) {
		name, _, _ := strings.Cut(strings.TrimSuffix(strings.Fields(line)[1], ":"), "@")
		if !slices.Contains([]string{"lo", "eth0"}, name) {
			out = append(out, "device "+name)
		}
	}
	for _, f := range b.Lane.Families() {
		w := wordsFor(f)
		network, _, _ := strings.Cut(lane.Network(f).String(), [2]string{"0.0/", "::/"}[f])
		for line := range strings.Lines(n.NS.Run(strings.Fields(w.ip + " route show table all")...)) {
			if strings.Contains(line, network) || strings.Contains(line, "proto 87") {
				out = append(out, "route "+strings.TrimSpace(line))
			}
		}
		if rules := strings.Count(n.NS.Run(strings.Fields(w.ip+" rule show")...), "\n"); rules != [2]int{3, 2}[f] {
			out = append(out, fmt.Sprintf("%d %s routing rules", rules, f))
		}
	}
	text, err := flannelstate.RulesText(n.NS)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		isEmpty := line == "" || line[0] == '#' || line == "COMMIT" || line[0] == '*' || line[0] == '}' ||
			strings.HasPrefix(line, ":") && strings.Contains(line, "ACCEPT") || strings.HasPrefix(line, "table ip") || strings.HasPrefix(line, "chain ") && line == strings.ToUpper(line)
		if !isEmpty {
			out = append(out, "rule "+line)
		}
	}
	out = append(out, filesOf(t, n)...)
	out = append(out, wordsOf(t, b, n)...)
	for _, s := range switches(b.Lane) {
		out = append(out, s+" = "+n.NS.Sysctl(s))
	}
	slices.Sort(out)
	return out
}

// filesOf lists the files that are not the bench's. The standard plugins stay: others may use them by now.
func filesOf(t *testing.T, n *Node) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(n.Dir, func(path string, d fs.DirEntry, err error) error {
		name, rerr := filepath.Rel(n.Dir, path)
		own := slices.Contains([]string{"net-conf.json", "cni-conf.json", "log", "source", "bin/bridge", "bin/host-local", "bin/portmap", "bin/bandwidth"}, name)
		if err == nil && !d.IsDir() && !own {
			out = append(out, "file "+name)
		}
		return errors.Join(err, rerr)
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// wordsOf lists what a Node says of a network.
func wordsOf(t *testing.T, b *Bench, n *Node) []string {
	t.Helper()
	node, err := b.Client.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(node.Annotations)) {
		if strings.HasPrefix(key, flannelstate.Prefix) {
			out = append(out, "annotation "+key)
		}
	}
	for _, c := range node.Status.Conditions {
		out = append(out, fmt.Sprintf("condition %s=%s %s", c.Type, c.Status, c.Reason))
	}
	return out
}

// interrupt kills an uninstall at moments that are spread over its time; the one after it ends the work.
func interrupt(t *testing.T, b *Bench, found []string) {
	const tries = 8
	n := b.Nodes[0]
	var took time.Duration
	for i := range tries {
		if err := n.Agent.Start(Options{}); err != nil {
			t.Fatal(err)
		}
		if _, err := await(n.Agent.Ready, patience); err != nil {
			t.Fatalf("%v\n%s", err, n.Agent.Tail())
		}
		n.Agent.Kill()
		cmd := n.Agent.Command(Options{})
		cmd.Args = append([]string{cmd.Path, "uninstall"}, cmd.Args[1:]...)
		start := time.Now()
		if err := n.NS.Do(cmd.Start); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			time.Sleep(took * time.Duration(i) / tries)
			_ = syscall.Kill(cmd.Process.Pid, syscall.SIGKILL) // it may have ended
		}
		err := cmd.Wait()
		if i == 0 {
			took = time.Since(start)
		}
		t.Logf("try %d of %d over %v: %v", i, tries, took, err)
		uninstall(t, n)
		if d := cmp.Diff(found, left(t, b, n)); d != "" {
			t.Fatalf("interrupted after %d/%d (-as found +left):\n%s", i, tries, d)
		}
	}
}

// addBy makes a pod by another conflist than the node's.
func (r *Runtime) addBy(ctx context.Context, list *libcni.NetworkConfigList, id string) ([]netip.Addr, error) {
	if err := execute("ip", "netns", "add", r.name(id)); err != nil {
		return nil, err
	}
	result, err := r.cni.AddNetworkList(ctx, list, r.conf(id))
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(result)
	if addrs := ipam.ResultAddrs(raw); err == nil && len(addrs) == len(r.node.families()) {
		return addrs, nil
	}
	return nil, fmt.Errorf("addresses in %s: %w", raw, err)
}

// another is a bridge on each node, and static routes to the other.
func another(t *testing.T, b *Bench, runtimes map[*Node]*Runtime) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	addrs := map[*Node][]netip.Addr{}
	for i, n := range b.Nodes {
		peer := b.Nodes[1-i]
		var ranges []string
		for _, f := range b.Lane.Families() {
			n.NS.IP(fmt.Sprintf("route add %s via %s", peer.Ends[f].CIDR, peer.Ends[f].IP))
			n.NS.SetSysctl([2]string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"}[f], "1") // as its own manual says
			ranges = append(ranges, fmt.Sprintf(`[{"subnet": %q}]`, n.Ends[f].CIDR))
		}
		list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"name": "other", "cniVersion": "1.0.0", "plugins": [
			{"type": "bridge", "bridge": "other0", "isDefaultGateway": true, "ipam": {"type": "host-local", "dataDir": %q, "ranges": [%s]}}]}`,
			n.Path("other"), strings.Join(ranges, ", ")))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(n.Path("net.d/10-other.conflist"), list.Bytes, 0o644); err != nil {
			t.Fatal(err)
		}
		if addrs[n], err = runtimes[n].addBy(ctx, list, "after-"+n.Name); err != nil {
			t.Fatal(err)
		}
	}
	for i, n := range b.Nodes {
		if _, err := await(func() error { return runtimes[n].Ping("after-"+n.Name, addrs[b.Nodes[1-i]]...) }, patience); err != nil {
			t.Errorf("from %s: %v", n.Name, err)
		}
		if said := uninstall(t, n); strings.Contains(said, "removed") {
			t.Errorf("an uninstall beside another network did something:\n%s", said)
		}
	}
}
