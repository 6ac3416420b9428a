package scenario

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/tests/terms"
)

// Record is one Node of the cluster as text: what its annotations and its spec say, right or wrong.
type Record struct {
	Name    string
	UID     string
	Created time.Time
	Type    string // backend-type
	VNI     string
	Port    string // backend-port; empty as flannel leaves it
	Managed string // kube-subnet-manager
	Also    string // backend-also: what it speaks besides, as the annotation has it

	Half [2]Half // by family; the zero value has no part in it
}

// Half is what a Record says of one family.
type Half struct {
	CIDR string
	IP   string // public-ip
	MAC  string
	Data string // backend-data, in place of what VNI and MAC give

	Overwrite string // public-ip-overwrite: what an administrator wants to be announced instead
}

// keys are the annotations of a family, by what a Half calls them.
func keys(f subnet.Family) (ip, data, overwrite string) {
	return [2]string{"public-ip", "public-ipv6"}[f], [2]string{"backend-data", "backend-v6-data"}[f],
		[2]string{"public-ip-overwrite", "public-ipv6-overwrite"}[f]
}

// node renders the record as the API server would hold it. Every other Node has its IPv6 range first.
func (r Record) node(prefix kube.Prefix) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: r.Name, UID: types.UID(r.UID), CreationTimestamp: metav1.NewTime(r.Created), Annotations: map[string]string{},
	}}
	set := func(key, value string) {
		if value != "" {
			n.Annotations[prefix.Key(key)] = value
		}
	}
	set("kube-subnet-manager", r.Managed)
	set("backend-type", r.Type)
	set("backend-port", r.Port)
	set("backend-also", r.Also)
	for _, f := range subnet.Families() {
		h := r.Half[f]
		if h == (Half{}) {
			continue
		}
		ip, data, overwrite := keys(f)
		set(ip, h.IP)
		if h.MAC != "" {
			set(data, fmt.Sprintf(`{"VNI":%s,"VtepMAC":"%s"}`, r.VNI, h.MAC))
		}
		set(data, h.Data)
		set(overwrite, h.Overwrite)
		if h.CIDR != "" {
			n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, h.CIDR)
		}
	}
	if last := len(r.Name) - 1; last >= 0 && r.Name[last]%2 == 0 {
		slices.Reverse(n.Spec.PodCIDRs)
	}
	if len(n.Spec.PodCIDRs) > 0 {
		n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	}
	return n
}

// read takes in what a node writes on its own Node. The VNI and the MACs stay in Data unless they are in it as we write them.
func (r *Record) read(get func(key string) string) {
	r.Type, r.Port, r.Managed, r.Also, r.VNI = get("backend-type"), get("backend-port"), get("kube-subnet-manager"), get("backend-also"), ""
	for _, f := range subnet.Families() {
		ip, data, _ := keys(f)
		h := Half{CIDR: r.Half[f].CIDR, Overwrite: r.Half[f].Overwrite, IP: get(ip), Data: get(data)}
		if h.IP != "" && h.Overwrite != "" {
			h.IP = h.Overwrite
		}
		var vni int
		_, err := fmt.Sscanf(h.Data, `{"VNI":%d,"VtepMAC":%q}`, &vni, &h.MAC)
		if text := fmt.Sprint(vni); err == nil && (r.VNI == "" || r.VNI == text) {
			r.VNI, h.Data = text, ""
		}
		r.Half[f] = h
	}
}

// set changes one field by its name in a script, and with it the same one of all the families that are named.
func (r *Record) set(key, value string, families ...subnet.Family) error {
	fields := map[string]*string{"type": &r.Type, "vni": &r.VNI, "port": &r.Port, "managed": &r.Managed, "also": &r.Also}
	if field, ok := fields[key]; ok {
		*field = value
		return nil
	}
	for _, f := range families {
		h := &r.Half[f]
		halves := map[string]*string{"cidr": &h.CIDR, "ip": &h.IP, "mac": &h.MAC, "data": &h.Data, "overwrite": &h.Overwrite}
		field, ok := halves[key]
		if !ok {
			return fmt.Errorf("set %s of node %s: want one of %v", key, r.Name,
				slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Keys(fields)), slices.Collect(maps.Keys(halves))))))
		}
		*field = terms.In(f, value)
	}
	return nil
}

// cidrs are the ranges of a record, by family.
func (r Record) cidrs() [2]string { return [2]string{r.Half[0].CIDR, r.Half[1].CIDR} }
