package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/nstest"
)

// join adds a Node that is nowhere.
func (w *crashWorld) join(name string, number int) {
	w.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
		"flannel.alpha.coreos.com/kube-subnet-manager": "true", "flannel.alpha.coreos.com/backend-type": "vxlan",
		"flannel.alpha.coreos.com/backend-port": "4789", "flannel.alpha.coreos.com/public-ip": w.fabric.Addr(number).String(),
		"flannel.alpha.coreos.com/backend-data": fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:00:00:%02x"}`, number),
	}}}
	n.Spec.PodCIDR = fmt.Sprintf("10.244.%d.0/24", number)
	n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := w.admin.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// routed waits until the agent has a route to a Node's pods.
func (w *crashWorld) routed(number int) {
	w.t.Helper()
	nstest.Eventually(w.t, crashPatience, func() error {
		if text := w.node.IP("route show dev flannel.1"); !strings.Contains(text, fmt.Sprintf("10.244.%d.0/24 via", number)) {
			return fmt.Errorf("no route to node %d: %s", number, text)
		}
		return nil
	})
}

func losesItsDefaultRoute(t *testing.T, api *apiserver.API) {
	w := newCrashWorld(t, api)
	w.cfg.Iface = Iface{} // the default route decides
	w.node.IP("route add default via 192.168.50.254")
	a := w.start(0)
	if !w.through(a) {
		t.Fatalf("the agent died:\n%s", a.log)
	}
	from, to := w.meet()
	nstest.Eventually(t, crashPatience, func() error { return from.CanPing(to) })
	ping := from.StartPing(nstest.Ping{Dst: to})
	w.node.IP("route del default")
	w.join("e", 5)
	w.routed(5)
	if err := w.readyz(); err != nil || !strings.Contains(a.log.String(), "underlay IPv4 kept") {
		t.Errorf("/readyz: %v; log:\n%s", err, a.log)
	}
	w.stop(a)
	// An agent that starts now does not know which device it was. It says so, touches nothing, and goes on when it can.
	b := w.start(0)
	nstest.Eventually(t, crashPatience, func() error {
		if err := w.readyz(); err == nil || !strings.Contains(err.Error(), "unable to find default route") {
			return fmt.Errorf("/readyz says %v\n%s", fmt.Sprint(err), b.log)
		}
		return nil
	})
	w.join("f", 6)
	w.node.IP("route add default via 192.168.50.254")
	w.routed(6)
	nstest.Eventually(t, crashPatience, w.readyz)
	if result := ping.Stop(); len(result.Lost) > 0 {
		t.Errorf("packets were lost: %s", result)
	}
	w.stop(b)
}

func sendsLargePackets(t *testing.T, api *apiserver.API) {
	w := newCrashWorld(t, api)
	a := w.start(0)
	if !w.through(a) {
		t.Fatalf("the agent died:\n%s", a.log)
	}
	from, to := w.meet()
	nstest.Eventually(t, crashPatience, func() error { return from.CanPing(to) })
	// A way that is narrower than the link: the device fits through it, nothing is lost, and what may not be fragmented is refused.
	deviceTakes := func(mtu string) {
		t.Helper()
		nstest.Eventually(t, crashPatience, func() error {
			if text := w.node.IP("link show dev flannel.1"); !strings.Contains(text, "mtu "+mtu+" ") {
				return errors.New(text)
			}
			return nil
		})
	}
	w.node.IP("route add 192.168.50.2/32 dev eth0 mtu 1400")
	deviceTakes("1350")
	for _, ping := range []nstest.Ping{{Dst: to, Size: 1450}, {Dst: to, Size: 1350, DF: true}} {
		if r := from.Ping(ping, 50); len(r.Lost) > 0 {
			t.Errorf("%d bytes over a narrow way, DF %v: %s", ping.Size, ping.DF, r)
		}
	}
	w.node.IP("route del 192.168.50.2/32 dev eth0")
	deviceTakes("1450")
	// A smaller link: the pod keeps its 1450, and is told that they do not fit.
	w.node.IP("link set eth0 mtu 1400")
	deviceTakes("1350")
	if err := upload(w.fabric.Nodes[1], from, to); err != nil {
		t.Errorf("a pod that was made before cannot send: %v", err)
	}
	if text := from.IP("route get " + to.Next().String()); !strings.Contains(text, "mtu 1350") {
		t.Errorf("the pod has not heard of the smaller MTU: %s", text)
	}
	w.stop(a)
}

// upload sends 200 kB over TCP to an address of the other node's pod, which lives on the node itself here.
func upload(node, from *nstest.NS, to netip.Addr) error {
	const size = 200_000
	node.IP("addr replace " + to.Next().String() + "/32 dev lo")
	at := netip.AddrPortFrom(to.Next(), 7000)
	l := node.Listen(at)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := io.CopyN(io.Discard, c, size); err == nil {
			_, _ = c.Write([]byte("k")) // the other end waits for it
		}
	}()
	c, err := from.Dial("tcp", at, 10*time.Second)
	if err != nil {
		return err
	}
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write(make([]byte, size)); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}
