package kube

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

	// Optional says that we can do without: a server that forbids it, as under the ClusterRole of another product, or does not
	// serve it may do so for good, and is asked ever more seldom.
	Optional bool
}

// Run feeds the store until ctx ends. It returns only then.
func (f Feed) Run(ctx context.Context) {
	// The reflector's own log would say with each retry what is noted once.
	quiet := logr.Discard()
	reflector := cache.NewReflectorWithOptions(f.listWatch(ctx), f.Kind.Object, f.Store, cache.ReflectorOptions{
		Name: f.Kind.Name, Logger: &quiet,
		// For answers like 429 and 500. With its jitter it stays below two seconds: a node that cannot see its peers change
		// is to know within two seconds after the server has recovered, and to end within two when told to.
		Backoff: &wait.Backoff{Duration: 300 * time.Millisecond, Factor: 1.5, Steps: 4, Cap: time.Second, Jitter: 0.5},
	})
	// A connection that breaks in the middle of an event is called an internal error. The watch goes on where it was all the
	// same; with the default of zero each such break would bring the whole list again.
	reflector.MaxInternalErrorRetryDuration = time.Minute
	reflector.RunWithContext(klog.NewContext(ctx, quiet))
}

// listWatch is the way to the objects. It uses Run's ctx and not the reflector's, which for lists is none.
func (f Feed) listWatch(ctx context.Context) cache.ListerWatcher {
	refused := &refusal{}
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := attempt(ctx, f.Note, func() (runtime.Object, error) {
				ctx, cancel := context.WithTimeout(ctx, listPatience)
				defer cancel()
				return f.Kind.List(ctx, o)
			})
			if f.Optional {
				refused.rest(ctx, err)
			}
			return list, err
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := attempt(ctx, f.Note, func() (watch.Interface, error) { return f.watch(ctx, o) })
			if f.Optional {
				refused.rest(ctx, err)
			}
			return w, err
		},
	}, f.Client.Interface)
}

// refusal knows since when a server has forbidden a kind, or does not serve it. One goroutine at a time uses it, the reflector's.
type refusal struct{ since time.Time }

// rest waits after a refusal for a quarter of the time that it has lasted, up to half a minute: a thousand agents that each
// asked every second for what they may not see were a thousand requests a second for ever.
func (r *refusal) rest(ctx context.Context, err error) {
	if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		r.since = time.Time{}
		return
	}
	if r.since.IsZero() {
		r.since = time.Now()
	}
	stayAway(ctx, time.Since(r.since)/4)
}

// How long a server that says nothing is waited for. One that takes twenty seconds for each answer is slow and not away;
// one behind a middle box that has lost it, and does not say so, would be waited for for ever.
const (
	listPatience  = 2 * time.Minute
	watchPatience = time.Minute      // until a watch begins
	watchOverdue  = 30 * time.Second // after the server was to end it
)

// watch begins a watch that ends by itself.
func (f Feed) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	ctx, way := withOutcome(ctx)
	begin := time.AfterFunc(watchPatience, cancel)
	w, err := f.Kind.Watch(ctx, o)
	begin.Stop()
	if err == nil && way.err != nil { // an empty watch, after which the reflector would list
		w.Stop()
		err = way.err
	}
	if err != nil {
		cancel()
		return nil, err
	}
	if o.TimeoutSeconds != nil {
		end := time.AfterFunc(time.Duration(*o.TimeoutSeconds)*time.Second+watchOverdue, cancel)
		context.AfterFunc(ctx, func() { end.Stop() })
	}
	return boundWatch{w, cancel}, nil
}

// boundWatch lets go of its context when it is stopped.
type boundWatch struct {
	watch.Interface
	cancel context.CancelFunc
}

// Stop ends the watch.
func (w boundWatch) Stop() {
	w.cancel()
	w.Interface.Stop()
}
