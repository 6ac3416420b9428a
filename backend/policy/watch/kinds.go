package watch

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	policyapi "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/subnet/kube"
)

// The kinds, as their feeds and complaints are named.
const (
	kindPolicies   = "networkpolicies"
	kindCluster    = "clusternetworkpolicies"
	kindDefinition = "customresourcedefinitions"
	kindPods       = "pods"
	kindNamespaces = "namespaces"
	kindNodes      = "nodes"

	definitionName = kindCluster + "." + policyapi.GroupName
)

// streamed is a kind that comes in protobuf, each object made a value as soon as it is decoded.
func streamed[T any, V any, P kube.Message[T]](rc rest.Interface, name string, k kind[V], typed lister[P]) kube.Kind {
	return kube.Kind{
		Name: name, Object: P(new(T)), Watch: typed.watch,
		List: kube.Streamed(rc, name, func(obj P) runtime.Object {
			p, _ := k.parse(obj)
			return slimOf(&k, p, obj)
		}, typed.list),
	}
}

// lister is a typed client's List and Watch.
type lister[P any] struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func policiesOf(c *kube.Client) kube.Kind {
	api := c.NetworkingV1().NetworkPolicies(metav1.NamespaceAll)
	return streamed(c.NetworkingV1().RESTClient(), kindPolicies, policies(), lister[*networkingv1.NetworkPolicy]{
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
		watch: api.Watch,
	})
}

func podsOfCluster(c *kube.Client, k kind[policy.Pod]) kube.Kind {
	api := c.CoreV1().Pods(metav1.NamespaceAll)
	return streamed(c.CoreV1().RESTClient(), kindPods, k, lister[*corev1.Pod]{
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
		watch: api.Watch,
	})
}

func namespacesOf(c *kube.Client, k kind[policy.Namespace]) kube.Kind {
	api := c.CoreV1().Namespaces()
	return streamed(c.CoreV1().RESTClient(), kindNamespaces, k, lister[*corev1.Namespace]{
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
		watch: api.Watch,
	})
}

func nodesOf(c *kube.Client, k kind[policy.Node]) kube.Kind {
	api := c.CoreV1().Nodes()
	return streamed(c.CoreV1().RESTClient(), kindNodes, k, lister[*corev1.Node]{
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
		watch: api.Watch,
	})
}

// errFake tells that there is no real server behind a client, as in some tests.
var errFake = errors.New("the client speaks to no server")

// configOf makes clients of other groups over the connections of the one that is there. Objects of definitions come in
// JSON only.
func configOf(c *kube.Client) (*rest.Config, *rest.RESTClient, error) {
	core, ok := c.CoreV1().RESTClient().(*rest.RESTClient)
	if !ok || core == nil {
		return nil, nil, errFake
	}
	return &rest.Config{Host: c.Server, APIPath: "/apis", QPS: 20, Burst: 40}, core, nil
}

// definition is the object that says whether there are ClusterNetworkPolicies in this cluster: nothing of it but its
// name, and nothing beside it.
func definition(c *kube.Client) (kube.Kind, error) {
	config, core, err := configOf(c)
	if err != nil {
		return kube.Kind{}, err
	}
	client, err := metadata.NewForConfigAndClient(config, core.Client)
	if err != nil {
		return kube.Kind{}, fmt.Errorf("make a client for definitions: %w", err)
	}
	api := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: kindDefinition})
	const only = "metadata.name=" + definitionName
	return kube.Kind{
		Name: kindDefinition, Object: &metav1.PartialObjectMetadata{},
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = only
			return api.List(ctx, o)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			return api.Watch(ctx, o)
		},
	}, nil
}

// clusterPoliciesOf asks for ClusterNetworkPolicies.
func clusterPoliciesOf(c *kube.Client) (kube.Kind, error) {
	config, core, err := configOf(c)
	if err != nil {
		return kube.Kind{}, err
	}
	types := runtime.NewScheme()
	if err := policyapi.Install(types); err != nil {
		return kube.Kind{}, fmt.Errorf("make a client for %s: %w", kindCluster, err)
	}
	config.GroupVersion = &schema.GroupVersion{Group: policyapi.GroupVersion.Group, Version: policyapi.GroupVersion.Version}
	config.NegotiatedSerializer = serializer.NewCodecFactory(types).WithoutConversion()
	client, err := rest.RESTClientForConfigAndClient(config, core.Client)
	if err != nil {
		return kube.Kind{}, fmt.Errorf("make a client for %s: %w", kindCluster, err)
	}
	options := schema.GroupVersion{Version: "v1"} // in which ListOptions are known to the codec
	return kube.Kind{
		Name: kindCluster, Object: &policyapi.ClusterNetworkPolicy{},
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := &policyapi.ClusterNetworkPolicyList{}
			err := client.Get().Resource(kindCluster).SpecificallyVersionedParams(&o, scheme.ParameterCodec, options).Do(ctx).Into(list)
			return list, err
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			return client.Get().Resource(kindCluster).SpecificallyVersionedParams(&o, scheme.ParameterCodec, options).Watch(ctx)
		},
	}, nil
}

// definitions makes values of the definition's metadata.
func definitions() kind[metav1.PartialObjectMetadata] {
	return kind[metav1.PartialObjectMetadata]{
		key:  func(d *metav1.PartialObjectMetadata) key { return key{name: d.Name} },
		uid:  func(d *metav1.PartialObjectMetadata) string { return string(d.UID) },
		same: func(a, b *metav1.PartialObjectMetadata) bool { return a.UID == b.UID },
		parse: func(obj any) (parsed[metav1.PartialObjectMetadata], bool) {
			d, ok := obj.(*metav1.PartialObjectMetadata)
			if !ok {
				return parsed[metav1.PartialObjectMetadata]{}, false
			}
			return parsed[metav1.PartialObjectMetadata]{key: key{name: d.Name}, uid: string(d.UID), value: d}, true
		},
	}
}
