package bench

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

// node is a host with the real plugins, and one pod that comes and goes.
type node struct {
	host, pod *nstest.NS
	lane      lane.Lane
	dir       string
	count     int
}

// root is the top of the repository, as tests of this package see it.
const root = "../.."

func newNode(t testing.TB, l lane.Lane) *node {
	t.Helper()
	n := &node{host: nstest.New(t), pod: nstest.New(t), lane: l, dir: t.TempDir()}
	for _, name := range []string{"bridge", "host-local"} {
		cmd := exec.Command("go", "tool", "-n", name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		file, err := cmd.Output()
		if err != nil {
			t.Fatalf("build %s: %v", name, err)
		}
		if err := os.Symlink(strings.TrimSpace(string(file)), n.file(name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", n.file("flannel"), "./cniplugin")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build flannel: %v\n%s", err, out)
	}
	env := subnet.Env{MTU: 1450, IPMasq: true}
	for _, f := range l.Families() {
		own := lane.PodCIDR(f, 1)
		env.Networks[f], env.Subnets[f] = lane.Network(f), netip.PrefixFrom(own.Addr().Next(), own.Bits())
	}
	if err := os.WriteFile(n.file("subnet.env"), env.Render(), 0o644); err != nil {
		t.Fatal(err)
	}
	// A pod that stays: the first makes the bridge.
	first := *n
	first.pod = nstest.New(t)
	if _, err := first.call("flannel", "ADD", "stays"); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) file(name string) string { return filepath.Join(n.dir, name) }

// conf is what a runtime would give the plugin: to the shim the stock configuration, to the bridge what the shim makes of it.
func (n *node) conf(plugin string) string {
	if plugin == "bridge" {
		return `{"cniVersion":"1.0.0","name":"cbr0","type":"bridge","hairpinMode":true,"isDefaultGateway":true,"isGateway":true,"ipMasq":false,"mtu":1450,` +
			`"ipam":{"type":"host-local","dataDir":"` + n.file("networks") + `","ranges":[` + n.each(`[{"subnet":"%s"}]`, podCIDR) + `],"routes":[` + n.each(`{"dst":"%s"}`, lane.Network) + `]}}`
	}
	return `{"cniVersion":"1.0.0","name":"cbr0","type":"flannel","subnetFile":"` + n.file("subnet.env") + `","dataDir":"` + n.file("records") + `",` +
		`"delegate":{"hairpinMode":true,"isDefaultGateway":true},"ipam":{"dataDir":"` + n.file("networks") + `"}}`
}

func podCIDR(f subnet.Family) netip.Prefix { return lane.PodCIDR(f, 1) }

// each writes a prefix of each family.
func (n *node) each(format string, prefix func(subnet.Family) netip.Prefix) string {
	var out []string
	for _, f := range n.lane.Families() {
		out = append(out, fmt.Sprintf(format, prefix(f)))
	}
	return strings.Join(out, ",")
}

// call runs a plugin as a runtime does and says how long that took.
func (n *node) call(plugin, verb, id string) (time.Duration, error) {
	cmd := exec.Command(n.file(plugin))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+id, "CNI_NETNS="+n.pod.Path(), "CNI_IFNAME=eth0", "CNI_PATH="+n.dir)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(n.conf(plugin)), &out, &out
	start := time.Now()
	err := n.host.Do(cmd.Start) // on a thread in the host's namespace
	if err == nil {
		err = cmd.Wait()
	}
	took := time.Since(start)
	if err != nil {
		return took, fmt.Errorf("%s %s: %w: %s", plugin, verb, err, out.String())
	}
	return took, nil
}

// cycle makes a pod and deletes it; the time is that of one of the two.
func (n *node) cycle(plugin, counts string) thing {
	return func() (time.Duration, error) {
		n.count++
		id := fmt.Sprintf("timed-%d", n.count)
		add, err := n.call(plugin, "ADD", id)
		if err != nil {
			return 0, err
		}
		del, err := n.call(plugin, "DEL", id)
		if counts == "ADD" {
			return add, err
		}
		return del, err
	}
}
