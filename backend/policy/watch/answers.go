package watch

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/weft-cni/weft/subnet/kube"
)

// answers remembers how lists and watches of each kind were answered last.
type answers struct {
	server string
	log    *slog.Logger

	// mu protects what follows, which the feeds write and health checks read.
	mu    sync.Mutex
	bad   map[string]error     // by kind
	since map[string]time.Time // by kind, when it was refused first
}

// lasting is how long a kind has to be refused to be taken for such: an API server that starts knows neither rights nor definitions for
// a moment, and whoever took that for an answer would take the rules of an earlier run away.
const lasting = 5 * time.Second

// refused tells that a server has forbidden a kind, or does not serve it.
func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) }

// note takes an answer, and logs what is news.
func (a *answers) note(kind string, err error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		err = nil // "list again" is an answer like any other
	}
	a.mu.Lock()
	was := a.bad[kind]
	if !refused(err) {
		delete(a.since, kind)
	} else if !refused(was) {
		a.since[kind] = time.Now()
	}
	if err == nil {
		delete(a.bad, kind)
	} else {
		a.bad[kind] = err
	}
	a.mu.Unlock()
	switch {
	case err != nil && was == nil:
		a.log.Warn("policies: "+kube.Explain(a.server, err), "kind", kind)
	case err == nil && was != nil:
		a.log.Info("policies: the API server answers", "kind", kind)
	}
}

// of is how a kind was answered last.
func (a *answers) of(kind string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bad[kind]
}

// refusal is how a kind is refused for good; nil while it is not.
func (a *answers) refusal(kind string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if since, is := a.since[kind]; !is || time.Since(since) < lasting {
		return nil
	}
	return a.bad[kind]
}

// reason is the first complaint, or "".
func (a *answers) reason() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(a.bad)) {
		return kube.Explain(a.server, a.bad[kind])
	}
	return ""
}
