package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/nstest"
)

// crashWorld is a node whose agent is this test's own binary, with a real API server, and a second node that was set up by
// hand and never fails.
type crashWorld struct {
	t      testing.TB
	fabric *nstest.Fabric
	node   *nstest.NS // the one with the agent
	conn   *kernel.Conn
	admin  *kubernetes.Clientset
	dir    string
	cfg    Config
	stops  []time.Duration // how long each stop by SIGTERM took
}

// Ready within: a start takes a fraction of a second of an idle machine.
const crashPatience = 60 * time.Second

const otherMAC = "02:00:00:00:00:02"

func newCrashWorld(t testing.TB, api *apiserver.API) *crashWorld {
	t.Helper()
	w := &crashWorld{t: t, fabric: nstest.NewFabric(t, 2), admin: api.Admin(), dir: t.TempDir()}
	if err := apiserver.Permit(w.admin, "../../manifests/kube-flannel.yml"); err != nil {
		t.Fatal(err)
	}
	w.node = w.fabric.Nodes[0]
	conn, err := kernel.OpenAt(w.node.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	w.conn = conn
	at := func(name string) string { return filepath.Join(w.dir, name) }
	w.cfg = Config{
		Kube:    Kube{Kubeconfig: api.KubeconfigFor(api.Proxy.Listen(t, w.node, "127.0.0.1:0")), AnnotationPrefix: "flannel.alpha.coreos.com", NodeName: "a"},
		Iface:   Iface{Names: []string{"eth0"}},
		Traffic: Traffic{Masquerade: true, Forward: true, ForwardPlace: "auto"},
		Health:  Health{IP: netip.MustParseAddr("127.0.0.1"), Port: 10256},
		Paths: Paths{
			NetConf: at("etc/net-conf.json"), SubnetFile: at("run/subnet.env"), StateDir: at("state"), CNIConf: at("net.d"),
			CNIBin: at("bin"), CNISource: at("source"), CNIData: at("cni"), NetNS: at("netns"), SysNet: "/proc/sys/net",
		},
		SetNetworkUnavailable: true, Resync: 5 * time.Second,
	}
	for _, dir := range []string{"etc", "run", "state", "net.d", "bin", "source", "cni", "netns"} {
		if err := os.Mkdir(at(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.write(w.cfg.Paths.NetConf, `{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "Port": 4789}}`)
	for _, name := range []string{"flannel", "bridge", "host-local", "portmap", "bandwidth"} {
		w.plugin(w.cfg.Paths.CNISource, name, "v1.10.0")
	}
	w.nodes()
	w.other()
	return w
}

// plugin makes a CNI plugin that answers what is asked of it at installation. It is long, so that half of it is no program.
func (w *crashWorld) plugin(dir, name, release string) {
	w.t.Helper()
	text := fmt.Sprintf("#!/bin/sh\nif [ \"$CNI_COMMAND\" = VERSION ]; then\n%s\necho '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}'\nelse\necho 'CNI %s plugin %s'\nfi\n",
		strings.Repeat("# "+name+"\n", 500), name, release)
	path := filepath.Join(dir, name)
	w.write(path+".new", text)
	if err := errors.Join(os.Chmod(path+".new", 0o755), os.Rename(path+".new", path)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *crashWorld) write(path, text string) {
	w.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// nodes makes the cluster anew: the own Node, the one that was set up by hand, and two that are nowhere.
func (w *crashWorld) nodes() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), crashPatience)
	defer cancel()
	if err := w.admin.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		w.t.Fatal(err)
	}
	for i, name := range []string{"a", "b", "c", "d"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
		n.Spec.PodCIDR = fmt.Sprintf("10.244.%d.0/24", i+1)
		n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
		if name != "a" {
			for key, value := range map[string]string{
				"kube-subnet-manager": "true", "backend-type": "vxlan", "backend-port": "4789", "public-ip": w.fabric.Addr(i + 1).String(),
				"backend-data": fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:00:00:%02x"}`, i+1),
			} {
				n.Annotations["flannel.alpha.coreos.com/"+key] = value
			}
		}
		if _, err := w.admin.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// other sets node b up. The agent's own MAC is in its annotation only after the first start, so meet comes then.
func (w *crashWorld) other() {
	b := w.fabric.Nodes[1]
	b.IP("link add flannel.1 type vxlan id 1 dev eth0 local 192.168.50.2 dstport 4789 nolearning")
	b.IP("link set flannel.1 address " + otherMAC + " up mtu 1450")
	b.IP("addr add 10.244.2.0/32 dev flannel.1")
}

// meet tells node b of the agent's node, and makes a pod on each.
func (w *crashWorld) meet() (from *nstest.NS, to netip.Addr) {
	w.t.Helper()
	have, err := w.conn.Dump(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	mac := have.Links["flannel.1"].MAC.String()
	b := w.fabric.Nodes[1]
	b.Bridge("fdb replace " + mac + " dev flannel.1 dst 192.168.50.1")
	b.IP("neigh replace 10.244.1.0 lladdr " + mac + " dev flannel.1 nud permanent")
	b.IP("route replace 10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink")
	b.Pod(1450, netip.MustParsePrefix("10.244.2.5/24"))
	return w.node.Pod(1450, netip.MustParsePrefix("10.244.1.5/24")), netip.MustParseAddr("10.244.2.5")
}

// crashLog is what an agent says; it is read while it is written.
type crashLog struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *crashLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

// String is all that was said.
func (l *crashLog) String() string { return l.From(0) }

// From is what was said after the first n bytes.
func (l *crashLog) From(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()[n:]
}

// Len is how many bytes were said.
func (l *crashLog) Len() int { return len(l.String()) }

// agent is a running one.
type crashAgent struct {
	cmd   *exec.Cmd
	log   *crashLog
	steps string
	ended chan struct{}
	err   error // of Wait, once ended
}

// start starts an agent that dies at a step, or none.
func (w *crashWorld) start(dies int) *crashAgent {
	w.t.Helper()
	return w.startMortal(mortal{Dies: dies})
}

func (w *crashWorld) startMortal(m mortal) *crashAgent {
	w.t.Helper()
	a := &crashAgent{log: &crashLog{}, steps: filepath.Join(w.dir, "steps"), ended: make(chan struct{})}
	_ = os.Remove(a.steps) // of an earlier run, if there was one
	m.Config, m.Steps = w.cfg, a.steps
	text, err := json.Marshal(m)
	if err != nil {
		w.t.Fatal(err)
	}
	// What the manifest gives the container, and no more: without CAP_DAC_OVERRIDE even root is refused.
	a.cmd = exec.Command("setpriv", "--bounding-set=-all,+net_admin,+net_raw", os.Args[0])
	a.cmd.Env = append(os.Environ(), mortalEnv+"="+string(text))
	a.cmd.Stderr = a.log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := w.node.Do(a.cmd.Start); err != nil {
		w.t.Fatal(err)
	}
	go func() { defer close(a.ended); a.err = a.cmd.Wait() }()
	w.t.Cleanup(func() {
		_ = a.cmd.Process.Kill() // it has mostly ended
		<-a.ended
	})
	return a
}

// through waits until the agent has died, or has done all that there is to do; then it returns true.
func (w *crashWorld) through(a *crashAgent) bool {
	w.t.Helper()
	done := false
	nstest.Eventually(w.t, crashPatience, func() error {
		select {
		case <-a.ended:
			return nil
		default:
		}
		err := w.done()
		done = err == nil
		return err
	})
	return done
}

// done tells what is still missing: readiness, and each of the files as it stays.
func (w *crashWorld) done() error {
	if err := w.readyz(); err != nil {
		return err
	}
	d := daemon{cfg: w.cfg}
	for _, path := range d.written() {
		if _, err := os.Stat(path); err != nil {
			return err
		}
	}
	if status, err := os.ReadFile(w.cfg.Paths.StatusFile()); err != nil || !strings.Contains(string(status), `"ready":true`) {
		return fmt.Errorf("weft.json: %s (%s)", status, fmt.Sprint(err))
	}
	// The first snapshot on the disk may be one of before the announcement.
	if kept, err := os.ReadFile(w.cfg.Paths.SnapshotFile()); err != nil || strings.Contains(string(kept), `"Announced": {}`) {
		return fmt.Errorf("snapshot.json does not know of the announcement: %s", fmt.Sprint(err))
	}
	return nil
}

// readyz asks the agent whether it is ready, and why not.
func (w *crashWorld) readyz() error {
	_, err := w.get("/readyz")
	return err
}

// rounds is how often each loop has turned, by its name.
func (w *crashWorld) rounds() map[string]int {
	w.t.Helper()
	text, err := w.get("/metrics")
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]int{}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, `weft_sync_duration_seconds_count{loop="`)
		name, count, _ := strings.Cut(strings.TrimSpace(rest), `"} `)
		if n, err := strconv.Atoi(count); ok && err == nil {
			out[name] = n
		}
	}
	return out
}

// get asks the agent on loopback.
func (w *crashWorld) get(path string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = w.node.Do(func() error {
			var d net.Dialer
			c, err = d.DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}}}
	resp, err := client.Get("http://127.0.0.1:10256" + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(string(body))
	}
	return string(body), err
}

// stop ends an agent by SIGTERM and returns how long that took.
func (w *crashWorld) stop(a *crashAgent) time.Duration {
	w.t.Helper()
	begin := time.Now()
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
	<-a.ended
	if a.err != nil {
		w.t.Errorf("the agent ended with %v after SIGTERM:\n%s", a.err, a.log)
	}
	took := time.Since(begin)
	w.stops = append(w.stops, took)
	return took
}

// revision is what of the own Node changes while nothing changes for the agent.
var revision = regexp.MustCompile(`"(ResourceVersion|NetworkUnavailable)": "[^"]*"`)

// picture is all that the agent made on the node, as text.
func (w *crashWorld) picture() string {
	w.t.Helper()
	state, err := w.conn.Dump(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString(state.String())
	rules, err := w.node.Try("nft", "--stateless", "list", "table", "inet", "weft")
	fmt.Fprintf(&b, "%s%v\n", rules, err)
	p := w.cfg.Paths
	for _, path := range []string{p.SubnetFile, p.SnapshotFile(), p.CollectFile(), filepath.Join(p.CNIConf, install.ConflistName)} {
		text, err := os.ReadFile(path)
		fmt.Fprintf(&b, "%s: %s%v\n", filepath.Base(path), revision.ReplaceAll(text, nil), err)
	}
	return b.String()
}

// temps lists what dead writers left.
func (w *crashWorld) temps() []string {
	left, _ := filepath.Glob(filepath.Join(w.dir, "*", ".*.tmp*")) // the pattern is good
	return left
}
