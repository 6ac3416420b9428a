package reliability

import (
	"context"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
)

// stranger is peer number i, which has no machine.
func (b *Bench) stranger(i int) Peer {
	p := Peer{Name: fmt.Sprintf("s%d", i), Port: 4789, Backend: b.Backend}
	for _, f := range b.Lane.Families() {
		ip := netip.MustParseAddr(wordsFor(f).nowhere).AsSlice()
		ip[len(ip)-1] = byte(100 + i)
		addr, _ := netip.AddrFromSlice(ip)
		p.Ends[f] = End{CIDR: lane.PodCIDR(f, 100+i), IP: addr, MAC: subnet.MAC{0x0a, 4: byte(f), 5: byte(i)}}
	}
	return p
}

// annotations are what a node announces of itself.
func (p Peer) annotations() map[string]string {
	notes := map[string]string{annotationPrefix + "backend-type": "vxlan", annotationPrefix + "kube-subnet-manager": "true"}
	isDirect := p.Backend == HostGW
	if isDirect {
		notes[annotationPrefix+"backend-type"] = "host-gw"
	} else {
		notes[annotationPrefix+"backend-port"] = fmt.Sprint(p.Port)
	}
	for _, f := range subnet.Families() {
		end := p.Ends[f]
		if end == (End{}) {
			continue
		}
		notes[key(f, "public-ip")] = end.IP.String()
		if notes[key(f, "backend-data")] = fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, end.MAC); isDirect {
			notes[key(f, "backend-data")] = "null"
		}
	}
	return notes
}

const annotationPrefix = "flannel.alpha.coreos.com/"

// key is an annotation as a family has it: the one without a number is IPv4's.
func key(f subnet.Family, name string) string {
	if f == subnet.IPv6 {
		name = map[string]string{"backend-data": "backend-v6-data", "public-ip": "public-ipv6"}[name]
	}
	return annotationPrefix + name
}

// announces lets a stranger say what it is now.
func (b *Bench) announces(p Peer) error {
	says := map[string]any{}
	for key, value := range p.annotations() {
		says[key] = value
	}
	return b.annotate(p.Name, says)
}

func strangerJoins(b *Bench) error {
	p := b.stranger(1)
	if err := b.Create(p, p.annotations()); err != nil {
		return err
	}
	b.Strangers = append(b.Strangers, p)
	return nil
}

func strangerLeaves(b *Bench) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b.Strangers = nil
	return b.Client.CoreV1().Nodes().Delete(ctx, b.stranger(1).Name, metav1.DeleteOptions{})
}
