package gate_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weft-cni/weft/backend"
	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/watch"
	"github.com/weft-cni/weft/subnet/attach"
	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/tests/nstest"
)

// nursery is a node with all real parts between the runtime and the kernel: the plugin, its delegates, the gate, the
// watch (on a fake API server that never tells an address) and the policies. Its pods may ask the resolver, at
// 10.9.0.2:53, and nobody else may be asked or may ask.
type nursery struct {
	*node
	outside *nstest.NS
	bin     string
	api     *fake.Clientset
}

const resolver = "10.9.0.2:53"

func newNursery(t *testing.T) *nursery {
	t.Helper()
	nstest.NeedRoot(t)
	n := &nursery{node: newNode(t), outside: nstest.New(t), bin: builtPlugins(t), api: fake.NewClientset()}
	nstest.Veth(t, n.ns, "out", n.outside, "eth0")
	for _, args := range []string{"addr add 10.9.0.1/24 dev out", "link set out up"} {
		n.ns.IP(args)
	}
	for _, args := range []string{"addr add 10.9.0.2/24 dev eth0", "link set eth0 up", "route add 10.244.0.0/16 via 10.9.0.1"} {
		n.outside.IP(args)
	}
	n.ns.SetSysctl("net.ipv4.ip_forward", "1")
	n.outside.UDPEcho(netip.MustParseAddrPort(resolver))
	// What pods send past the resolver, and none may.
	n.outside.SetNFT("table inet count { chain in { type filter hook input priority 0; ip saddr 10.244.0.0/16 udp dport != 53 counter; }; }")
	n.must(os.WriteFile(n.file, []byte("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"), 0o600))
	n.must(n.api.Tracker().Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}))
	return n
}

// builtPlugins puts the plugin and its delegates into a folder.
func builtPlugins(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/flannel", "github.com/weft-cni/weft/cniplugin").CombinedOutput(); err != nil {
		t.Fatalf("build the plugin: %v\n%s", err, out)
	}
	for _, name := range []string{"bridge", "host-local"} {
		out, err := exec.CommandContext(t.Context(), "go", "tool", "-n", name).Output()
		if err != nil {
			t.Fatalf("build %s: %v", name, err)
		}
		if err := os.Symlink(strings.TrimSpace(string(out)), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// deny isolates every pod of the namespace, but for the resolver.
func (n *nursery) deny() {
	n.Helper()
	udp, dns := corev1.ProtocolUDP, intstr.FromInt32(53)
	_, err := n.api.NetworkingV1().NetworkPolicies("x").Create(n.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "deny", Namespace: "x"},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{"Ingress", "Egress"},
			Egress: []networkingv1.NetworkPolicyEgressRule{{
				To:    []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.9.0.2/32"}}},
				Ports: []networkingv1.NetworkPolicyPort{{Protocol: &udp, Port: &dns}},
			}},
		},
	}, metav1.CreateOptions{})
	n.must(err)
}

// enforce runs the agent's round of policies until the test ends.
func (n *nursery) enforce() {
	n.Helper()
	source := watch.New(watch.Config{Client: &kube.Client{Interface: n.api, Server: "fake"}, NodeName: "n1", Attached: n.gate, Log: slog.New(slog.DiscardHandler)})
	manager := policy.NewGuarded(netfilter.Host{NetNS: n.ns.Path()})
	loop := &backend.Loop{Name: "policy", Settle: time.Millisecond, Retry: 20 * time.Millisecond, Sync: func(ctx context.Context) error {
		active, known := source.Active()
		if !known {
			return errors.New("not known yet")
		}
		if err := n.gate.Shut(ctx, active); err != nil {
			return err
		}
		w, complete := source.World()
		if !complete {
			return errors.New("no World yet")
		}
		if _, err := manager.Sync(ctx, w, policy.Config{Held: n.gate.Held}); err != nil {
			return err
		}
		return n.gate.Judged(ctx, w)
	}}
	ctx, cancel := context.WithCancel(context.Background())
	changed, heard, gated := source.Changed(), manager.Watch(ctx), n.gate.Watch(ctx)
	tasks := []func(){
		func() { _ = source.Run(ctx) },
		func() { _ = loop.Run(ctx) },
		func() {
			for ctx.Err() == nil {
				select {
				case <-ctx.Done():
				case <-changed:
					loop.Poke()
				case <-gated:
					loop.Poke()
				case _, open := <-heard:
					if !open {
						return
					}
					loop.Poke()
				}
			}
		},
	}
	done := make(chan struct{}, len(tasks))
	for _, task := range tasks {
		go func() { task(); done <- struct{}{} }()
	}
	n.Cleanup(func() {
		cancel()
		for range tasks {
			<-done
		}
		manager.Close()
	})
}

// born is a pod whose namespace counts from its first packet.
type born struct {
	name string
	ns   *nstest.NS
	took time.Duration // of ADD
}

// birth makes a Pod in the API, without an address, and attaches it.
func (n *nursery) birth(name string) born {
	n.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.PodSpec{NodeName: "n1"}}
	_, err := n.api.CoreV1().Pods("x").Create(n.Context(), pod, metav1.CreateOptions{})
	n.must(err)
	b := born{name: name, ns: nstest.New(n.T)}
	b.ns.SetNFT("table inet count { chain in { type filter hook input priority 0; meta l4proto udp ip saddr 10.9.0.2 udp sport != 53 counter; }; }")
	began := time.Now()
	n.cni("ADD", b)
	b.took = time.Since(began)
	return b
}

func (n *nursery) cni(verb string, b born) {
	n.Helper()
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"cbr0","type":"flannel","subnetFile":%q,"dataDir":%q,`+
		`"delegate":{"hairpinMode":true,"isDefaultGateway":true},"ipam":{"dataDir":%q}}`,
		n.file, filepath.Dir(n.file)+"/records", filepath.Dir(n.file)+"/networks")
	out, err := n.ns.Input(conf, "env", "CNI_COMMAND="+verb, "CNI_CONTAINERID=c-"+b.name, "CNI_NETNS="+b.ns.Path(), "CNI_IFNAME=eth0", "CNI_PATH="+n.bin,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=x;K8S_POD_NAME="+b.name+";K8S_POD_UID=uid-"+b.name, n.bin+"/flannel")
	if err != nil {
		n.Fatalf("%s %s: %v\n%s", verb, b.name, err, out)
	}
}

// counted reads the one counter of a namespace's table.
func counted(t *testing.T, ns *nstest.NS) int {
	t.Helper()
	m := regexp.MustCompile(`counter packets (\d+)`).FindStringSubmatch(ns.Run("nft", "list", "table", "inet", "count"))
	if m == nil {
		t.Fatal("no counter")
	}
	packets, _ := strconv.Atoi(m[1])
	return packets
}

// hammer sends to the addresses that the node will give out next until stop.
func (n *nursery) hammer(first, last int) (stop func()) {
	n.Helper()
	var conn net.PacketConn
	n.must(n.outside.Do(func() (err error) { conn, err = net.ListenPacket("udp4", "10.9.0.2:4444"); return err }))
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			for i := first; i <= last; i++ {
				to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}), 7777))
				_, _ = conn.WriteTo([]byte("let me in"), to) // an address that nobody has is unreachable
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-done; _ = conn.Close() }
}

// ask sends one question to the resolver as the pod's first packet, and one to somebody who must not be asked.
func (n *nursery) ask(b born) error {
	var conn net.Conn
	if err := b.ns.Do(func() (err error) {
		other, err := net.Dial("udp4", "10.9.0.2:9999")
		if err != nil {
			return err
		}
		defer other.Close()
		if _, err := other.Write([]byte("psst")); err != nil {
			return err
		}
		conn, err = net.Dial("udp4", resolver)
		return err
	}); err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("who is it")); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, err := conn.Read(make([]byte, 64))
	return err
}

// N-03: from the first packet on nothing passes that the policy forbids, and the first question is answered.
func TestN03APodIsBornUnderItsPolicies(t *testing.T) {
	n := newNursery(t)
	births := 20
	if n, err := strconv.Atoi(os.Getenv("WEFT_BIRTHS")); err == nil {
		births = n
	}
	n.enforce()
	before := n.birth("before") // makes the bridge
	n.must(n.ask(before))
	if got := counted(t, n.outside); got == 0 {
		t.Fatal("without a policy the forbidden does not pass either: nothing is shown")
	}
	n.cni("DEL", before)
	n.deny()
	n.until("new pods are held", func() bool {
		return strings.Contains(n.ns.NFT(), "weft-gate")
	})
	base := counted(t, n.outside)
	stop := n.hammer(2, min(births+5, 254))
	defer stop()
	var took []time.Duration
	for i := range births {
		b := n.birth(fmt.Sprintf("p%03d", i))
		// After that the plugin lets it start although it is held, and a machine can be as busy as that.
		if err := n.ask(b); err != nil && b.took < attach.Patience {
			t.Errorf("%s: its first question is lost: %v", b.name, err)
		}
		if got := counted(t, b.ns); got > 0 {
			t.Errorf("%s: %d packets came in that its policy forbids", b.name, got)
		}
		took = append(took, b.took)
		if i%3 == 0 { // its address is used again
			n.cni("DEL", b)
			n.must(n.api.CoreV1().Pods("x").Delete(t.Context(), b.name, metav1.DeleteOptions{}))
		}
	}
	if got := counted(t, n.outside) - base; got > 0 {
		t.Errorf("%d packets went out that the policy forbids", got)
	}
	slices.Sort(took)
	t.Logf("%d births: ADD median %v, longest %v", births, took[len(took)/2], took[len(took)-1])
	for _, line := range strings.Split(n.ns.Run("nft", "list", "chain", "inet", "weft-gate", "forward"), "\n") {
		if strings.Contains(line, "daddr") && strings.Contains(line, "ipv4") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// N-01: a connection of the address with who had it before would let its packets in unseen.
func TestN01APodHearsNothingOfConnectionsOfWhoHadItsAddressBefore(t *testing.T) {
	n := newNursery(t)
	n.enforce()
	n.deny()
	n.until("new pods are held", func() bool { return strings.Contains(n.ns.NFT(), "weft-gate") })
	n.birth("first") // has the first address, and makes the bridge
	for i := range 5 {
		addr := netip.AddrFrom4([4]byte{10, 244, 1, byte(3 + i)}) // the next that is given out
		at := netip.AddrPortFrom(addr, 7777)
		earlier := nstest.New(t)
		nstest.Veth(t, n.ns, "earlier", earlier, "eth0")
		n.ns.IP("link set earlier up")
		n.ns.IP(fmt.Sprintf("route add %s/32 dev earlier", addr))
		earlier.IP(fmt.Sprintf("addr add %s/32 dev eth0", addr))
		for _, args := range []string{"link set eth0 up", "route add 10.244.1.1 dev eth0", "route add 10.9.0.0/24 via 10.244.1.1"} {
			earlier.IP(args)
		}
		n.ns.IP("addr add 10.244.1.1/32 dev earlier")
		earlier.UDPEcho(at)
		conn, err := n.outside.Dial("udp", at, 10*time.Second)
		n.must(err)
		n.until("who has the address answers", func() bool {
			_, _ = conn.Write([]byte("hello"))
			_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			_, err := conn.Read(make([]byte, 64))
			return err == nil
		})
		n.ns.IP("link del earlier")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				_, _ = conn.Write([]byte("are you still there"))
				time.Sleep(time.Millisecond)
			}
		}()
		b := n.birth(fmt.Sprintf("p%03d", i))
		if !strings.Contains(b.ns.IP("-4 addr show dev eth0"), addr.String()+"/") {
			t.Fatalf("it has another address than %s", addr)
		}
		n.must(n.ask(b))
		cancel()
		<-done
		_ = conn.Close()
		if got := counted(t, b.ns); got > 0 {
			t.Errorf("%s: %d packets came in that its policy forbids", b.name, got)
		}
	}
}

// Pods that were born while no agent was there send and receive nothing, until one is there and has judged them.
func TestN19PodsThatAreBornWithoutAnAgentWaitForOne(t *testing.T) {
	n := newNursery(t)
	n.deny()
	n.shut(true)
	n.stop()
	b := n.birth("a")
	stop := n.hammer(2, 5)
	defer stop()
	n.must(b.ns.Do(func() error {
		c, err := net.Dial("udp4", "10.9.0.2:9999")
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("psst"))
		return err
	}))
	n.node.start()
	n.enforce()
	n.until("it may ask the resolver", func() bool {
		var c net.Conn
		if b.ns.Do(func() (err error) { c, err = net.Dial("udp4", resolver); return err }) != nil {
			return false
		}
		defer c.Close()
		_, _ = c.Write([]byte("who is it"))
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		_, err := c.Read(make([]byte, 64))
		return err == nil
	})
	if in, out := counted(t, b.ns), counted(t, n.outside); in+out > 0 {
		t.Errorf("%d packets came in and %d went out that the policy forbids", in, out)
	}
}
