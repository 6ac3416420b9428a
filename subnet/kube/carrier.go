package kube

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
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
// that the request goes through after all. (A token that has a file of its own is client-go's business: a 401
// makes it read that.)
type carrier struct {
	load func() (*rest.Config, error)

	// mu protects the fields below; any request may find out that they are out of date.
	mu     sync.Mutex
	config *rest.Config
	next   http.RoundTripper
	made   int       // how often next was made anew
	looked time.Time // when the files were last read
}

// reread is the least time between two looks at the files.
const reread = 200 * time.Millisecond

// newCarrier makes a carrier for a configuration that was just loaded.
func newCarrier(config *rest.Config, load func() (*rest.Config, error)) (*carrier, error) {
	next, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	return &carrier{load: load, config: config, next: next}, nil
}

// RoundTrip passes a request on, and once more at once when the files turn out to be new.
func (c *carrier) RoundTrip(r *http.Request) (*http.Response, error) {
	way, number := c.current()
	resp, err := way.RoundTrip(r)
	if !turnedAway(resp, err) {
		return resp, err
	}
	c.refresh(time.Now())
	next, now := c.current()
	if now == number { // else the files are new, whoever read them
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
	return next.RoundTrip(again)
}

// turnedAway tells whether one side does not believe the other who it is.
func turnedAway(resp *http.Response, err error) bool {
	var untrusted *tls.CertificateVerificationError
	var alert tls.AlertError
	return resp != nil && resp.StatusCode == http.StatusUnauthorized || errors.As(err, &untrusted) || errors.As(err, &alert)
}

// current is the way to take, and how many were made before it.
func (c *carrier) current() (http.RoundTripper, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next, c.made
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
	if err != nil || sameTrust(config, c.config) {
		return
	}
	next, err := rest.TransportFor(config)
	if err != nil {
		return
	}
	utilnet.CloseIdleConnectionsFor(c.next)
	c.config, c.next = config, next
	c.made++
}

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
