package watch

import (
	"log/slog"
	"maps"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/weft-cni/weft/subnet/kube"
)

// answers remembers how lists and watches of each kind were answered last.
type answers struct {
	server string
	log    *slog.Logger

	// mu protects bad, which the feeds write and health checks read.
	mu  sync.Mutex
	bad map[string]error // by kind
}

// note takes an answer, and logs what is news.
func (a *answers) note(kind string, err error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		err = nil // "list again" is an answer like any other
	}
	a.mu.Lock()
	was := a.bad[kind]
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

// reason is the first complaint, or "".
func (a *answers) reason() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(a.bad)) {
		return kube.Explain(a.server, a.bad[kind])
	}
	return ""
}
