package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

// says waits until /readyz has a word, or has it no more.
func (w *crashWorld) says(word string, want bool) {
	w.t.Helper()
	nstest.Eventually(w.t, crashPatience, func() error {
		body, err := w.get("/readyz")
		if body += fmt.Sprint(err); strings.Contains(body, word) != want {
			return fmt.Errorf("/readyz has %q: %v; it says %s", word, !want, body)
		}
		return nil
	})
}

// turned waits until a loop has looked at what is there now.
func (w *crashWorld) turned(loop string) {
	w.t.Helper()
	before := w.rounds()[loop]
	nstest.Eventually(w.t, crashPatience, func() error {
		if n := w.rounds()[loop]; n < before+2 {
			return fmt.Errorf("loop %q has turned %d times, %d before", loop, n, before)
		}
		return nil
	})
}

// flapsItsLink takes the underlay of a node of both families down and up. Its IPv6 address goes with that, and comes again when
// somebody gives it: pods that are made meanwhile have both families all the same.
func flapsItsLink(t *testing.T, api *apiserver.API) {
	w := newCrashWorld(t, api)
	w.dual(subnet.IPv4, subnet.IPv4)
	w.write(w.cfg.Paths.NetConf, lane.Dual.NetConf(`{"Type": "vxlan", "Port": 4789}`))
	a := w.start(0)
	nstest.Eventually(t, crashPatience, w.done)
	before, err := os.ReadFile(w.cfg.Paths.SubnetFile)
	if err != nil {
		t.Fatal(err)
	}
	w.node.IP("link set eth0 down")
	w.node.IP("link set eth0 up")
	w.says("pick the IPv6 underlay", true)
	w.turned(partFiles)
	if now, err := os.ReadFile(w.cfg.Paths.SubnetFile); err != nil || string(now) != string(before) {
		t.Errorf("subnet.env while IPv6 is away: %v (-before +now):\n%s", err, cmp.Diff(string(before), string(now)))
	}
	w.node.IP("addr add fd00:50::1/64 dev eth0 nodad")
	nstest.Eventually(t, crashPatience, w.done)
	w.stop(a)
}

// meetsNetworksOfOthers has a bridge around the node's own pods, and a route of another network plugin for some of them.
func meetsNetworksOfOthers(t *testing.T, api *apiserver.API) {
	w := newCrashWorld(t, api)
	a := w.start(0)
	nstest.Eventually(t, crashPatience, w.done)
	w.node.IP("link add docker0 type bridge")
	w.node.IP("addr add 10.244.1.1/16 dev docker0")
	w.node.IP("link set docker0 up")
	w.says("docker0 has 10.244.1.1/16 inside 10.244.0.0/16", true)
	w.node.IP("link del docker0")
	nstest.Eventually(t, crashPatience, w.done)
	w.node.IP("route add blackhole 10.244.1.64/26")
	w.says("note: routes to own pods: routes of somebody else take packets for this node's own pods another way; "+
		"remove them (ip route del): blackhole 10.244.1.64/26 for 10.244.1.0/24", true)
	w.node.IP("route del blackhole 10.244.1.64/26")
	w.says("routes to own pods", false)
	w.stop(a)
}

// bootsWithoutItsKubeconfig is a service of the node after a power cut that took the kubeconfig's content along.
func bootsWithoutItsKubeconfig(t *testing.T, api *apiserver.API) {
	w := newCrashWorld(t, api)
	a := w.start(0)
	nstest.Eventually(t, crashPatience, w.done)
	w.stop(a)
	good, err := os.ReadFile(w.cfg.Kube.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	w.cfg.Kube.Kubeconfig = filepath.Join(w.dir, "kubeconfig")
	w.write(w.cfg.Kube.Kubeconfig, "")
	conflist := filepath.Join(w.cfg.Paths.CNIConf, install.ConflistName)
	if err := errors.Join(os.Remove(w.cfg.Paths.SubnetFile), os.Remove(conflist)); err != nil {
		t.Fatal(err)
	}
	w.node.IP("link del flannel.1")
	a = w.start(0)
	nstest.Eventually(t, crashPatience, func() error {
		state, err := w.conn.Dump(t.Context())
		if err == nil && len(state.Routes) != 3 {
			err = fmt.Errorf("the data plane is %s", state)
		}
		_, envErr := os.Stat(w.cfg.Paths.SubnetFile)
		_, listErr := os.Stat(conflist)
		return errors.Join(err, envErr, listErr)
	})
	w.says("stale: API away", true)
	if text := a.log.String(); !strings.Contains(text, "the API server cannot be asked: use kubeconfig file") {
		t.Errorf("the log says nothing of the file:\n%s", text)
	}
	w.write(w.cfg.Kube.Kubeconfig, string(good))
	w.says("stale: API away", false)
	nstest.Eventually(t, crashPatience, w.done)
	w.stop(a)
}

// changesItsNetConfWithoutAnybody has nothing but its memory: the API server is away, and the disk did not take the state.
func changesItsNetConfWithoutAnybody(t *testing.T, api *apiserver.API) {
	w := newCrashWorld(t, api)
	kept := w.cfg.Paths.SnapshotFile()
	if err := os.MkdirAll(filepath.Join(kept, "in its place"), 0o755); err != nil {
		t.Fatal(err)
	}
	a := w.start(0)
	mtu := func(want int) {
		t.Helper()
		nstest.Eventually(t, crashPatience, func() error {
			state, err := w.conn.Dump(t.Context())
			if err == nil && (state.Links["flannel.1"].MTU != want || len(state.Routes) != 3) {
				err = fmt.Errorf("want MTU %d and three routes, the data plane is %s", want, state)
			}
			return err
		})
	}
	mtu(1450)
	w.says("announce", false)
	api.Proxy.Close()
	defer api.Proxy.Open()
	w.says("stale: API away", true)
	w.write(w.cfg.Paths.NetConf, `{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "Port": 4789, "MTU": 1400}}`)
	mtu(1350)
	w.stop(a)
}

// movesToAnotherRange is a machine whose Node was deleted and made anew with another podCIDR, and whose agent was started anew with
// it. A pod of before still lives on the bridge; as soon as it has gone, new pods can start.
func movesToAnotherRange(t *testing.T, api *apiserver.API) {
	w := newCrashWorld(t, api)
	a := w.start(0)
	nstest.Eventually(t, crashPatience, w.done)
	pod := w.node.Pod(1450, netip.MustParsePrefix("10.244.1.5/24"))
	w.stop(a)
	nodes := w.admin.CoreV1().Nodes()
	again := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{PodCIDR: "10.244.9.0/24", PodCIDRs: []string{"10.244.9.0/24"}}}
	err := nodes.Delete(t.Context(), "a", metav1.DeleteOptions{})
	if err == nil {
		_, err = nodes.Create(t.Context(), again, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	a = w.start(0)
	bridge := func(patience time.Duration, old bool) {
		t.Helper()
		nstest.Eventually(t, patience, func() error {
			env, err := os.ReadFile(w.cfg.Paths.SubnetFile)
			addrs := w.node.IP("-4 -br addr show dev cni0")
			if err != nil || !strings.Contains(string(env), "FLANNEL_SUBNET=10.244.9.1/24") || strings.Contains(addrs, "10.244.1.1/24") != old {
				return fmt.Errorf("%w; subnet.env: %s; the bridge: %s", err, env, addrs)
			}
			return nil
		})
	}
	bridge(crashPatience, true)
	w.turned("collect")
	bridge(crashPatience, true)
	pod.IP("link del eth0")
	bridge(30*time.Second, false) // the next usual look is a minute after the last
	w.stop(a)
}
