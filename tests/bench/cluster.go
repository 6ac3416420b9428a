package bench

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/vxlan"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/tests/nstest"
)

// prefix is that of the annotations.
const prefix = "flannel.alpha.coreos.com/"

func network() netip.Prefix { return netip.MustParsePrefix("10.0.0.0/8") }

// nodes are the Node objects of a cluster.
func nodes(n int) []*corev1.Node {
	out := make([]*corev1.Node, n)
	for i := range out {
		hi, lo := byte(i>>8), byte(i)
		cidr := fmt.Sprintf("10.%d.%d.0/24", 128+hi, lo)
		out[i] = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("n%05d", i), UID: types.UID(strconv.Itoa(i)), CreationTimestamp: metav1.Unix(int64(i), 0),
				Annotations: map[string]string{
					prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan", prefix + "backend-port": "4789",
					prefix + "backend-data": fmt.Sprintf(`{"VNI":1,"VtepMAC":"0a:00:00:00:%02x:%02x"}`, hi, lo),
					prefix + "public-ip":    fmt.Sprintf("172.16.%d.%d", hi, lo),
				},
			},
			Spec: corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
		}
	}
	return out
}

// peers reads a cluster, of which the first node is the own.
func peers(all []*corev1.Node) ([]subnet.Peer, error) {
	p, err := kube.ParsePrefix(prefix)
	if err != nil {
		return nil, err
	}
	rules := kube.Rules{Prefix: p, Networks: [2]netip.Prefix{network()}}
	self, _ := kube.ParseSelf(all[0], p)
	v := kube.View{Own: kube.ParsePeer(all[0], rules), Self: self, Now: time.Now()}
	for _, n := range all[1:] {
		v.Claims = append(v.Claims, kube.ParsePeer(n, rules))
	}
	r := kube.Resolve(v)
	if len(r.Peers) != len(all)-1 {
		return nil, fmt.Errorf("read %d nodes: %d peers, problems %v", len(all), len(r.Peers), r.Problems)
	}
	return r.Peers, nil
}

// plane is a node in a namespace, and what its kernel shall hold.
type plane struct {
	conn *kernel.Conn
	want kernel.State
}

func newPlane(t testing.TB, n int) *plane {
	t.Helper()
	host := nstest.NewFabric(t, 1).Nodes[0]
	conn, err := kernel.OpenAt(host.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	h, err := conn.Host(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	own := vxlan.VTEP{PodCIDR: netip.MustParsePrefix("10.128.0.0/24"), Local: netip.MustParseAddr("192.168.50.1"), ParentName: "eth0", UnderlayMTU: 1500, MAC: subnet.MAC{0x0a}}
	for _, l := range h.Links {
		if l.Name == "eth0" {
			own.Parent = l.Index
		}
	}
	all, err := peers(nodes(n + 1))
	if err != nil {
		t.Fatal(err)
	}
	want, err := vxlan.Plan(vxlan.Config{VNI: 1, Port: 4789, VTEPs: [2]vxlan.VTEP{own}, Networks: [2]netip.Prefix{network()}}, subnet.Snapshot{Peers: all})
	if err != nil {
		t.Fatal(err)
	}
	return &plane{conn, want}
}

// round is what the loop does: dump, compare, apply.
func (p *plane) round() error {
	have, err := p.conn.Dump(context.Background())
	if err != nil {
		return err
	}
	for _, op := range kernel.Diff(have, p.want) {
		if err := p.conn.Apply(context.Background(), op); err != nil {
			return err
		}
	}
	return nil
}

// first is a round from nothing; taking everything away again does not count.
func (p *plane) first() (time.Duration, error) {
	took, err := timed(p.round)()
	if err != nil {
		return 0, err
	}
	return took, p.conn.Apply(context.Background(), kernel.Op{Kind: kernel.LinkDel, Name: "flannel.1"})
}
