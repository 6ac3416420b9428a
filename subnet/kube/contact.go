package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// contact remembers since when something does not work and why. The zero value means that nothing is known.
type contact struct {
	// mu protects the fields below, which requests write and health checks read.
	mu    sync.Mutex
	heard bool      // there was an outcome
	lost  time.Time // zero while it works
	cause error
}

// note takes an outcome and reports whether it is news: the first one, a loss or a return.
func (c *contact) note(err error, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := !c.heard || (err == nil) != (c.cause == nil)
	switch {
	case err == nil:
		c.lost = time.Time{}
	case c.lost.IsZero():
		c.lost = now
	}
	c.heard, c.cause = true, err
	return news
}

// state is what was noted last; cause is nil while it works or nothing is known.
func (c *contact) state() (heard bool, lost time.Time, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard, c.lost, c.cause
}

// witness watches the way to the API server. client-go hides much of what happens there: it repeats a request on a
// connection that breaks for ten seconds before it says so, and turns a watch that cannot be made into an empty one.
type witness struct {
	next   http.RoundTripper
	client *Client
}

// RoundTrip passes the request on and notes whether it got through; any answer counts.
func (w witness) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(r)
	if r.Context().Err() == nil { // else the end of the request was our own doing
		w.client.way.note(err, time.Now())
		if err != nil {
			w.client.count(ResultUnreachable)
		} else {
			w.client.count(strconv.Itoa(resp.StatusCode))
		}
	}
	if o, ok := r.Context().Value(outcomeKey{}).(*outcome); ok {
		o.err = err
	}
	return resp, err
}

// outcome, put into the context of a request, tells how its last try on the way went.
type outcome struct{ err error }

type outcomeKey struct{}

func withOutcome(ctx context.Context) (context.Context, *outcome) {
	o := &outcome{}
	return context.WithValue(ctx, outcomeKey{}, o), o
}

// Explain says in one sentence why a request to the API server did not work and what to look at.
func Explain(server string, err error) string {
	var certificate *tls.CertificateVerificationError
	var files unusable
	switch {
	case errors.As(err, &files):
		return fmt.Sprintf("the API server cannot be asked: %v", files)
	case errors.As(err, &certificate):
		return fmt.Sprintf("API server %s is not trusted: %v (see the CA of the kubeconfig file or the ServiceAccount, the name in "+
			"the URL, and the clocks)", server, err)
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
// way is free again; client-go's reflector alone would list everything anew each time. A server that names a time is called
// again then. A 401 is tried once more at once: by then a token that was replaced has been read. Other answers of the
// server, bad ones too, are returned: for those the reflector's own growing delays spare the server.
func attempt[T any](ctx context.Context, note func(error), call func() (T, error)) (T, error) {
	refused := false
	for {
		began := time.Now()
		out, err := call()
		if ctx.Err() != nil {
			return out, err
		}
		if apierrors.IsUnauthorized(err) && !refused {
			refused = true
			continue
		}
		note(err)
		after, named := apierrors.SuggestsClientDelay(err)
		switch {
		case unreachable(err):
			pause(ctx, began)
		case named && !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
			stayAway(ctx, time.Duration(after)*time.Second)
		default:
			return out, err
		}
	}
}

// longest bounds how long a server can send us away.
const longest = 30 * time.Second

// stayAway waits as long as the server asked for, and up to a quarter more, so that not all agents come back at once.
func stayAway(ctx context.Context, d time.Duration) {
	d = max(min(d, longest), 50*time.Millisecond)
	select {
	case <-ctx.Done():
	case <-time.After(d + rand.N(d/4+1)):
	}
}

// pause waits until somewhat less than a second after began: a busy node then still keeps the two seconds that are promised.
// The jitter keeps the agents of a whole cluster from knocking at once.
func pause(ctx context.Context, began time.Time) {
	period := 600*time.Millisecond + rand.N(400*time.Millisecond)
	wait := max(period-time.Since(began), 50*time.Millisecond)
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
}
