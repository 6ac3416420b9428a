package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/tests/apiserver"
)

// apiCluster is a real API server. The story speaks to it as the administrator; the nodes go through a proxy, which is
// what goes away.
type apiCluster struct {
	api    *apiserver.API
	client *kubernetes.Clientset
	prefix kube.Prefix
	frozen []Record // what the nodes saw last, while the API is away
	away   bool
}

// callTimeout bounds a call of the story to the API server.
const callTimeout = 10 * time.Second

func newAPICluster(api *apiserver.API, prefix kube.Prefix) (*apiCluster, error) {
	c := &apiCluster{api: api, client: api.Admin(), prefix: prefix}
	if err := apiserver.Permit(c.client, "../../manifests/kube-flannel.yml"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	err := c.nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	return c, err
}

func (c *apiCluster) nodes() typedcorev1.NodeInterface { return c.client.CoreV1().Nodes() }

func (c *apiCluster) put(r Record) error {
	if err := c.remove(r.Name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	_, err := c.nodes().Create(ctx, r.node(c.prefix), metav1.CreateOptions{})
	return err
}

// change patches the annotations. A pod CIDR cannot be changed: such a Node is made anew.
func (c *apiCluster) change(name string, edit func(*Record) error) error {
	was, ok := c.record(name)
	if !ok {
		return fmt.Errorf("change node %s: it is not in the cluster", name)
	}
	now := was
	if err := edit(&now); err != nil {
		return err
	}
	if now.cidrs() != was.cidrs() {
		return c.put(now)
	}
	annotations := map[string]*string{}
	for key := range was.node(c.prefix).Annotations {
		annotations[key] = nil
	}
	for key, value := range now.node(c.prefix).Annotations {
		annotations[key] = &value
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	_, err = c.nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (c *apiCluster) remove(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	err := c.nodes().Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *apiCluster) leave(away bool) error {
	if away {
		c.frozen = c.view()
		c.api.Proxy.Close()
	} else {
		c.api.Proxy.Open()
	}
	c.away = away
	return nil
}

func (c *apiCluster) record(name string) (Record, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	n, err := c.nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Record{}, false
	}
	return recordOf(n, c.prefix), true
}

func (c *apiCluster) view() []Record {
	if c.away {
		return c.frozen
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	list, err := c.nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	records := make([]Record, len(list.Items))
	for i := range list.Items {
		records[i] = recordOf(&list.Items[i], c.prefix)
	}
	slices.SortFunc(records, oldest)
	return records
}

// recordOf reads a Node back.
func recordOf(n *corev1.Node, prefix kube.Prefix) Record {
	get := func(key string) string { return n.Annotations[prefix.Key(key)] }
	r := Record{Name: n.Name, UID: string(n.UID), Created: n.CreationTimestamp.UTC()}
	r.read(get)
	for _, f := range subnet.Families() {
		_, _, overwrite := keys(f)
		r.Half[f].Overwrite = get(overwrite)
	}
	for _, cidr := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(cidr); err == nil {
			r.Half[subnet.FamilyOf(p.Addr())].CIDR = cidr
		}
	}
	return r
}
