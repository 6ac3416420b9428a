package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// contact remembers how the API server last answered.
type contact struct {
	server string

	// mu protects the fields below, which several requests write and health checks read.
	mu    sync.Mutex
	lost  time.Time // since when it has not answered; zero while it does
	cause error     // why; nil before the first answer
}

func newContact(server string, now time.Time) *contact { return &contact{server: server, lost: now} }

// note takes the outcome of a request and reports whether contact was lost or made by it.
func (c *contact) note(err error, now time.Time) (turned bool) {
	if errors.Is(err, context.Canceled) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return false // our own doing, or a plain "list again"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	turned = (err == nil) != (c.lost.IsZero()) || err != nil && c.cause == nil
	if err == nil {
		c.lost, c.cause = time.Time{}, nil
		return turned
	}
	if c.lost.IsZero() {
		c.lost = now
	}
	c.cause = err
	return turned
}

// stale tells since when the API server has not answered.
func (c *contact) stale() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost, !c.lost.IsZero()
}

// reason is a sentence on what is wrong, or "".
func (c *contact) reason() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.lost.IsZero():
		return ""
	case c.cause == nil:
		return fmt.Sprintf("no answer yet from the API server %s", c.server)
	}
	return Explain(c.server, c.cause)
}

// Explain says in one sentence why a request to the API server did not work and what to look at.
func Explain(server string, err error) string {
	switch {
	case unreachable(err):
		return fmt.Sprintf("API server %s not reachable: %v (if this is the kubernetes Service's address, kube-proxy may not "+
			"serve it yet: see its pods on this node, or set --kube-api-url or --kubeconfig-file)", server, err)
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("API server %s refuses: %v (see the ClusterRole and ClusterRoleBinding of the manifest)", server, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Sprintf("API server %s does not accept our credentials: %v (see the ServiceAccount's token or the kubeconfig file)", server, err)
	}
	return fmt.Sprintf("API server %s answers: %v", server, err)
}

// unreachable tells errors of the way to the server from answers of the server.
func unreachable(err error) bool {
	var status apierrors.APIStatus
	return err != nil && !errors.As(err, &status)
}

// attempt calls until the server is reached, about once a second, so that work goes on within two seconds after the
// way is free again; client-go's reflector alone would wait up to a minute. Answers of the server, bad ones too, are
// returned: for those the reflector's own growing delays spare the server.
func attempt[T any](ctx context.Context, note func(error), call func() (T, error)) (T, error) {
	for {
		began := time.Now()
		out, err := call()
		note(err)
		if !unreachable(err) || ctx.Err() != nil {
			return out, err
		}
		pause(ctx, began)
	}
}

// pause waits until about a second after began. The jitter keeps the agents of a whole cluster from knocking at once.
func pause(ctx context.Context, began time.Time) {
	period := 750*time.Millisecond + rand.N(500*time.Millisecond)
	wait := max(period-time.Since(began), 50*time.Millisecond)
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
}
