package kube

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// carrier takes requests to the API server. Whom to trust and who we are lies in files, and those are replaced while we
// run: the CA bundle when the cluster's certificates are, a kubeconfig when its user is. client-go looks at the CA bundle
// every five minutes and at a kubeconfig never; here both are read again as soon as one side turns the other away, so
// that the request goes through after all, and when the server is not reached, which may be elsewhere by now. (A token that
// has a file of its own is client-go's business: a 401 makes it read that.)
type carrier struct {
	load  func() (*rest.Config, error)
	first *url.URL // of the server that client-go makes its requests for

	// mu protects the fields below; any request may find out that they are out of date.
	mu     sync.Mutex
	config *rest.Config
	way    way
	looked time.Time // when the files were last read
}

// way is how a request travels.
type way struct {
	next   http.RoundTripper
	server *url.URL
	number int // how many were made before
}

// reread is the least time between two looks at the files.
const reread = 200 * time.Millisecond

// newCarrier makes a carrier for a configuration that was just loaded.
func newCarrier(config *rest.Config, load func() (*rest.Config, error)) (*carrier, error) {
	w, err := newWay(config, 0)
	if err != nil {
		return nil, err
	}
	return &carrier{load: load, first: w.server, config: config, way: w}, nil
}

func newWay(config *rest.Config, number int) (way, error) {
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return way{}, err
	}
	next, err := rest.TransportFor(config)
	return way{next: next, server: server, number: number}, err
}

// RoundTrip passes a request on, and once more at once when it was turned away and the files turn out to be new.
func (c *carrier) RoundTrip(r *http.Request) (*http.Response, error) {
	w := c.current()
	resp, err := c.send(w, r)
	if err != nil && r.Context().Err() == nil || turnedAway(resp, err) {
		c.refresh(time.Now())
	}
	now := c.current()
	if now.number == w.number || !turnedAway(resp, err) { // else the files are new, whoever read them
		return resp, err
	}
	again := r.Clone(r.Context())
	if r.Body != nil && r.Body != http.NoBody {
		if r.GetBody == nil {
			return resp, err
		}
		body, bodyErr := r.GetBody()
		if bodyErr != nil {
			return resp, err
		}
		again.Body = body
	}
	if resp != nil {
		_ = resp.Body.Close() // its refusal is of no more interest
	}
	return c.send(now, again)
}

// send takes a request to the server that there is now.
func (c *carrier) send(w way, r *http.Request) (*http.Response, error) {
	if w.server != c.first {
		r = r.Clone(r.Context())
		r.URL.Scheme, r.URL.Host, r.URL.User, r.Host = w.server.Scheme, w.server.Host, w.server.User, w.server.Host
		path := strings.TrimPrefix(r.URL.Path, strings.TrimSuffix(c.first.Path, "/"))
		r.URL.Path, r.URL.RawPath = strings.TrimSuffix(w.server.Path, "/")+path, ""
	}
	return w.next.RoundTrip(r)
}

// turnedAway tells whether one side does not believe the other who it is.
func turnedAway(resp *http.Response, err error) bool {
	var untrusted *tls.CertificateVerificationError
	var alert tls.AlertError
	return resp != nil && resp.StatusCode == http.StatusUnauthorized || errors.As(err, &untrusted) || errors.As(err, &alert)
}

// current is the way to take.
func (c *carrier) current() way {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.way
}

// refresh reads the files, and makes another way when they say anything new. What cannot be read or used changes nothing:
// files are seen half written.
func (c *carrier) refresh(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.looked) < reread {
		return
	}
	c.looked = now
	config, err := c.load()
	if _, waits := c.way.next.(unusable); waits && err != nil {
		c.way.next = unusable{err}
	}
	if err != nil || config.Host == c.config.Host && sameTrust(config, c.config) {
		return
	}
	w, err := newWay(config, c.way.number+1)
	if err != nil {
		return
	}
	utilnet.CloseIdleConnectionsFor(c.way.next)
	c.config, c.way = config, w
}

// refuse has a carrier that nobody uses yet answer every request with what is wrong with the files, until they are mended.
func (c *carrier) refuse(bad error) {
	if bad != nil {
		c.way.next = unusable{bad}
	}
}

// unusable is the way of files that cannot be used, and the error of who takes it.
type unusable struct{ error }

// RoundTrip implements http.RoundTripper.
func (u unusable) RoundTrip(*http.Request) (*http.Response, error) { return nil, u }

// CloseIdleConnections has none to close.
func (unusable) CloseIdleConnections() {}

// sameTrust compares whom two configurations trust and who they say we are.
func sameTrust(a, b *rest.Config) bool {
	s, t := a.TLSClientConfig, b.TLSClientConfig
	return bytes.Equal(s.CAData, t.CAData) && bytes.Equal(s.CertData, t.CertData) && bytes.Equal(s.KeyData, t.KeyData) &&
		s.CertFile == t.CertFile && s.KeyFile == t.KeyFile && s.ServerName == t.ServerName &&
		a.BearerToken == b.BearerToken && a.BearerTokenFile == b.BearerTokenFile && a.Username == b.Username && a.Password == b.Password
}

// inlineCA reads the CA bundle here and now, so that client-go does not watch over its file by its own rules.
func inlineCA(config *rest.Config) error {
	file := config.CAFile
	if file == "" || len(config.CAData) > 0 {
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the CA bundle: %w", err)
	}
	config.CAFile, config.CAData = "", data
	return nil
}

// silence is how long the kernel waits for any word of the other end before it gives a connection up.
const silence = 3 * time.Second

// NewDialer makes connections that notice their end. A watch is silent for minutes, so nothing but the kernel's own
// probes tells that a server or a firewall has lost the connection: a server that came back without it answers the next
// probe, a second later, by a reset. A shorter dial timeout than client-go's: a lost SYN is sent again after 1, 3, 7, 15
// and 31 seconds, and a connection that is waited for would be made that much later than the way is free. Likewise data
// that was lost: after three seconds without an acknowledgement a new connection is faster than the next repetition.
func NewDialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         2 * time.Second,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3},
		Control: func(_, _ string, conn syscall.RawConn) error {
			var err error
			if ctl := conn.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
			}); ctl != nil {
				return ctl
			}
			return err
		},
	}
}
