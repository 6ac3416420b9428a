package kube

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Kind is one kind of object, and how a server is asked for it.
type Kind struct {
	Name   string         // plural and lower case, as in URLs
	Object runtime.Object // an empty one, of the type that the watch brings
	List   func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch  func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// Feed keeps a store equal to what the API server has of one kind. It differs from a bare reflector in how it meets
// failure: a server that cannot be reached is tried about once a second, and whoever wants to know hears of each answer.
type Feed struct {
	Client *Client
	Kind   Kind
	Store  cache.TransformingStore
	Note   func(error) // hears how each list and watch was answered; nil when it was well
}

// Run feeds the store until ctx ends. It returns only then.
func (f Feed) Run(ctx context.Context) {
	// The reflector's own log would say with each retry what is noted once.
	quiet := logr.Discard()
	reflector := cache.NewReflectorWithOptions(f.listWatch(ctx), f.Kind.Object, f.Store, cache.ReflectorOptions{
		Name: f.Kind.Name, Logger: &quiet,
		// For answers like 429 and 500; grows to two seconds with jitter, since a node without its peers is down.
		Backoff: &wait.Backoff{Duration: 300 * time.Millisecond, Factor: 1.7, Steps: 5, Cap: 2 * time.Second, Jitter: 0.5},
	})
	reflector.RunWithContext(klog.NewContext(ctx, quiet))
}

// listWatch is the way to the objects. It uses Run's ctx and not the reflector's, which for lists is none.
func (f Feed) listWatch(ctx context.Context) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return attempt(ctx, f.Note, func() (runtime.Object, error) { return f.Kind.List(ctx, o) })
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return attempt(ctx, f.Note, func() (watch.Interface, error) {
				ctx, way := withOutcome(ctx)
				w, err := f.Kind.Watch(ctx, o)
				if err == nil && way.err != nil { // an empty watch, after which the reflector would list
					w.Stop()
					return nil, way.err
				}
				return w, err
			})
		},
	}, f.Client.Interface)
}
