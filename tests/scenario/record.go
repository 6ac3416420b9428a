package scenario

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-cni/weft/subnet/kube"
)

// Record is one Node of the cluster as text: what its annotations and its spec say, right or wrong.
type Record struct {
	Name    string
	UID     string
	Created time.Time
	CIDR    string
	IP      string // public-ip
	MAC     string
	Type    string // backend-type
	VNI     string
	Port    string // backend-port; empty as flannel leaves it
	Data    string // backend-data, in place of what VNI and MAC give
	Managed string // kube-subnet-manager

	Overwrite string // public-ip-overwrite: what an administrator wants to be announced instead
}

// node renders the record as the API server would hold it.
func (r Record) node(prefix kube.Prefix) *corev1.Node {
	data := r.Data
	if data == "" {
		data = fmt.Sprintf(`{"VNI":%s,"VtepMAC":"%s"}`, r.VNI, r.MAC)
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: r.Name, UID: types.UID(r.UID), CreationTimestamp: metav1.NewTime(r.Created), Annotations: map[string]string{},
	}}
	for key, value := range map[string]string{
		"kube-subnet-manager": r.Managed, "backend-type": r.Type, "backend-data": data, "public-ip": r.IP, "backend-port": r.Port,
		"public-ip-overwrite": r.Overwrite,
	} {
		if value != "" {
			n.Annotations[prefix.Key(key)] = value
		}
	}
	if r.CIDR != "" {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = r.CIDR, []string{r.CIDR}
	}
	return n
}

// set changes one field by its name in a script.
func (r *Record) set(key, value string) error {
	fields := map[string]*string{
		"cidr": &r.CIDR, "ip": &r.IP, "mac": &r.MAC, "type": &r.Type, "vni": &r.VNI, "port": &r.Port, "data": &r.Data,
		"managed": &r.Managed, "overwrite": &r.Overwrite,
	}
	field, ok := fields[key]
	if !ok {
		return fmt.Errorf("set %s of node %s: want one of %v", key, r.Name, slices.Sorted(maps.Keys(fields)))
	}
	*field = value
	return nil
}
