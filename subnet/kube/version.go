package kube

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// newest is the highest resourceVersion that was seen. A list that is older comes from a server that lags behind the one
// which was asked before: taking it would undo for a while what is known, and cut off nodes that have joined meanwhile.
// Versions of one resource may be compared as numbers; what is no number is never called older.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
type newest struct {
	// mu protects the fields below, which the reflector and the list calls use.
	mu    sync.Mutex
	seen  uint64
	fresh bool // what comes next is a list that was streamed out of etcd, and counts whatever it says
}

// older reports whether a version lies before what was seen.
func (n *newest) older(version string) bool {
	v, err := strconv.ParseUint(version, 10, 64)
	n.mu.Lock()
	defer n.mu.Unlock()
	return err == nil && v < n.seen
}

// see notes a version.
func (n *newest) see(version string) {
	v, err := strconv.ParseUint(version, 10, 64)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil && v > n.seen {
		n.seen = v
	}
}

// rewind makes an older version the newest: the cluster itself went back, as when etcd is restored from a backup.
func (n *newest) rewind(version string) {
	v, err := strconv.ParseUint(version, 10, 64)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		n.seen = v
	}
}

// accept reports whether a list of a version may be taken, and whether the cluster went back with it.
func (n *newest) accept(version string) (ok, back bool) {
	if !n.older(version) {
		n.see(version)
		return true, false
	}
	n.mu.Lock()
	fresh := n.fresh
	n.mu.Unlock()
	if fresh {
		n.rewind(version)
	}
	return fresh, fresh
}

// expect says whether the next list comes out of etcd.
func (n *newest) expect(fresh bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fresh = fresh
}

// String is the version, or "" when none was seen.
func (n *newest) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seen == 0 {
		return ""
	}
	return strconv.FormatUint(n.seen, 10)
}

// guard makes a kind whose lists are never older than what is known. The reflector's first list may be of any age, but for
// what a kept snapshot tells. A server that lags behind all the same is passed by with a list out of etcd, and that counts
// whatever it says.
func (n *newest) guard(k Kind, client *Client, log *slog.Logger) Kind {
	list, begin := k.List, k.Watch
	k.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		n.expect(o.SendInitialEvents != nil && *o.SendInitialEvents && o.ResourceVersion == "")
		return begin(ctx, o)
	}
	k.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		n.expect(false)
		if known := n.String(); o.ResourceVersion == "0" && known != "" {
			// With a limit it would mean exactly that version, which is soon forgotten.
			o.ResourceVersion, o.ResourceVersionMatch, o.Limit = known, metav1.ResourceVersionMatchNotOlderThan, 0
		}
		obj, version, err := versioned(list(ctx, o))
		if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) { // the server has never seen it, and waited for it
			o.ResourceVersion, o.ResourceVersionMatch = "", ""
			obj, version, err = versioned(list(ctx, o))
		}
		if err != nil || o.Continue != "" || !n.older(version) {
			return obj, err
		}
		if o.ResourceVersion != "" {
			client.count(ResultStale)
			log.Info("a list from the API server is older than what is known; asking for one out of etcd", "kind", k.Name, "list", version, "known", n)
			o.ResourceVersion, o.ResourceVersionMatch = "", ""
			if obj, version, err = versioned(list(ctx, o)); err != nil {
				return nil, err
			}
		}
		if n.older(version) {
			log.Warn(wentBack, "kind", k.Name, "now", version)
			n.rewind(version)
		}
		return obj, nil
	}
	return k
}

// wentBack is said once when a list out of etcd is older than what is known.
const wentBack = "the cluster has gone back in time, as after a restored backup, or is another one"

// versioned adds a list's version.
func versioned(obj runtime.Object, err error) (runtime.Object, string, error) {
	if err != nil {
		return nil, "", err
	}
	list, err := meta.ListAccessor(obj)
	if err != nil {
		return nil, "", err
	}
	return obj, list.GetResourceVersion(), nil
}

// errOlder refuses a streamed list that is older than what is known.
func errOlder(version, known string) error {
	return fmt.Errorf("list of Nodes of version %s, %s is known", version, known)
}
