package reliability

import (
	"context"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/subnet"
)

// stranger is peer number i, which has no machine.
func stranger(i int) Peer {
	return Peer{
		Name: fmt.Sprintf("s%d", i), CIDR: cidr(100 + i), IP: netip.AddrFrom4([4]byte{192, 168, 50, byte(100 + i)}),
		MAC: subnet.MAC{0x0a, 5: byte(i)}, Port: 4789,
	}
}

// annotations are what a node announces of itself.
func (p Peer) annotations() map[string]string {
	const prefix = "flannel.alpha.coreos.com/"
	return map[string]string{
		prefix + "backend-type": "vxlan", prefix + "backend-data": fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, p.MAC),
		prefix + "kube-subnet-manager": "true", prefix + "public-ip": p.IP.String(), prefix + "backend-port": fmt.Sprint(p.Port),
	}
}

func strangerJoins(b *Bench) error {
	p := stranger(1)
	if err := b.Create(p.Name, p.CIDR.String(), p.annotations()); err != nil {
		return err
	}
	b.Strangers = append(b.Strangers, p)
	return nil
}

func strangerLeaves(b *Bench) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b.Strangers = nil
	return b.Client.CoreV1().Nodes().Delete(ctx, stranger(1).Name, metav1.DeleteOptions{})
}
