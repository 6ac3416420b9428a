package kube

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/weft-cni/weft/subnet/wire"
)

// Message is an API object with a form in protobuf: *corev1.Node, *corev1.Pod.
type Message[T any] interface {
	*T
	runtime.Object
	Unmarshal([]byte) error
}

// Streamed lists a kind so that each object is cut to what is used as soon as it is decoded. Servers up to 1.33 answer
// a list from their cache in one piece, whatever page size is asked for: of 5,000 Nodes of 60 KB that is 300 MB, and
// client-go would hold it twice. Here one object is held at a time. T is the kind, whole the typed client's List, which
// stands in where there is no real server.
func Streamed[T any, P Message[T]](rc rest.Interface, resource string, slim func(P) runtime.Object,
	whole func(context.Context, metav1.ListOptions) (runtime.Object, error),
) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		real, ok := rc.(*rest.RESTClient)
		if !ok || real == nil { // a fake
			list, err := whole(ctx, o)
			if err != nil {
				return nil, err
			}
			return slimList(list, slim)
		}
		// A Feed tries again by itself, and tells of each try; below it client-go would try ten times first.
		body, err := real.Get().Resource(resource).VersionedParams(&o, scheme.ParameterCodec).MaxRetries(0).Stream(ctx)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		list, err := readList(bufio.NewReader(body), slim)
		if err != nil {
			return nil, fmt.Errorf("read the list of %s: %w", resource, err)
		}
		if list.ResourceVersion == "" {
			return nil, fmt.Errorf("read the list of %s: the answer is no list", resource)
		}
		return list, nil
	}
}

// Watched watches a kind without the ten tries that client-go makes in silence: a Feed tries again by itself. whole is the
// typed client's Watch, which stands in where there is no real server.
func Watched(rc rest.Interface, resource string, whole func(context.Context, metav1.ListOptions) (watch.Interface, error),
) func(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		real, ok := rc.(*rest.RESTClient)
		if !ok || real == nil { // a fake
			return whole(ctx, o)
		}
		o.Watch = true
		return real.Get().Resource(resource).VersionedParams(&o, scheme.ParameterCodec).MaxRetries(0).Watch(ctx)
	}
}

// nodes is the kind that a Source watches, cut to what it reads.
func nodes(client *Client, prefix Prefix) Kind {
	nodes := client.CoreV1().Nodes()
	return Kind{
		Name: "nodes", Object: &corev1.Node{}, Watch: Watched(client.CoreV1().RESTClient(), "nodes", nodes.Watch),
		List: Streamed(client.CoreV1().RESTClient(), "nodes",
			func(n *corev1.Node) runtime.Object { return slim(n, prefix) },
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) }),
	}
}

// readList reads a list in protobuf or JSON.
func readList[T any, P Message[T]](r *bufio.Reader, slim func(P) runtime.Object) (*metav1.List, error) {
	list := &metav1.List{}
	if wire.IsList(r) {
		err := wire.ReadList(r, wire.Sink{Meta: list.ListMeta.Unmarshal, Object: func(data []byte) error {
			object := P(new(T))
			if err := object.Unmarshal(data); err != nil {
				return err
			}
			list.Items = append(list.Items, runtime.RawExtension{Object: slim(object)})
			return nil
		}})
		if err != nil {
			return nil, err
		}
		return list, nil
	}
	var in struct {
		metav1.ListMeta `json:"metadata"`
		Items           []T `json:"items"`
	}
	if err := json.NewDecoder(r).Decode(&in); err != nil {
		return nil, err
	}
	list.ListMeta = in.ListMeta
	for i := range in.Items {
		list.Items = append(list.Items, runtime.RawExtension{Object: slim(&in.Items[i])})
	}
	return list, nil
}

// slimList cuts a whole list down.
func slimList[T any, P Message[T]](whole runtime.Object, slim func(P) runtime.Object) (*metav1.List, error) {
	about, err := meta.ListAccessor(whole)
	if err != nil {
		return nil, fmt.Errorf("read a list: %w", err)
	}
	list := &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: about.GetResourceVersion(), Continue: about.GetContinue()}}
	err = meta.EachListItem(whole, func(o runtime.Object) error {
		if p, ok := o.(P); ok {
			list.Items = append(list.Items, runtime.RawExtension{Object: slim(p)})
		}
		return nil
	})
	return list, err
}
