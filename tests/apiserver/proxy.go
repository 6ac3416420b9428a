package apiserver

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"github.com/weft-cni/weft/tests/nstest"
)

// Fault looks at a request and may answer it in the server's place; then it returns true.
type Fault func(w http.ResponseWriter, r *http.Request) bool

// Proxy passes requests on to the API server and keeps count of them.
type Proxy struct {
	handler *httputil.ReverseProxy

	// mu protects the fields below, which requests and the test use at once.
	mu       sync.Mutex
	fault    Fault
	requests []Request
	conns    map[net.Conn]struct{}
	closed   bool          // new connections are dropped at once
	hung     chan struct{} // closed when the proxy goes on; nil while it does not hang
}

// Request is one that came by.
type Request struct {
	Method, Path, Query, ContentType, Accept string
}

func newProxy(t testing.TB, target string) *Proxy {
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(transport.CloseIdleConnections)
	p := &Proxy{conns: map[net.Conn]struct{}{}}
	p.handler = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(u)
			if r.Out.Header.Get("Authorization") == "" { // clients send no token over plain HTTP
				r.Out.Header.Set("Authorization", "Bearer "+AgentToken)
			}
		},
		Transport:     transport,
		FlushInterval: -1, // a watch event must not wait for the next one
		ErrorLog:      log.New(io.Discard, "", 0),
		// An API server that is away is no answer: the client must see a broken connection and not a 502.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
			panic(http.ErrAbortHandler) // impossible to say otherwise: net/http drops a connection on this panic alone
		},
	}
	return p
}

// Listen opens a way in, in a namespace or, when ns is nil, here. It returns the URL.
func (p *Proxy) Listen(t testing.TB, ns *nstest.NS, addr string) string {
	t.Helper()
	listener := listen(t, ns, addr)
	server := &http.Server{Handler: p, ConnState: p.track, ErrorLog: log.New(io.Discard, "", 0)}
	serve(t, server, func() error { return server.Serve(listener) })
	return "http://" + listener.Addr().String()
}

// listen listens in a namespace or, when ns is nil, here.
func listen(t testing.TB, ns *nstest.NS, addr string) net.Listener {
	t.Helper()
	var listener net.Listener
	open := func() (err error) {
		listener, err = net.Listen("tcp", addr)
		return err
	}
	var err error
	if ns == nil {
		err = open()
	} else {
		err = ns.Do(open)
	}
	if err != nil {
		t.Fatalf("listen on %s: %v", addr, err)
	}
	return listener
}

// serve runs a server until the test ends.
func serve(t testing.TB, server *http.Server, run func() error) {
	done := make(chan error, 1)
	go func() { done <- run() }()
	t.Cleanup(func() {
		_ = server.Close() // the listener's error comes out of run
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("proxy: %v", err)
		}
	})
}

// ServeHTTP answers by the fault, else by the server.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	fault := p.fault
	p.requests = append(p.requests, Request{r.Method, r.URL.Path, r.URL.RawQuery, r.Header.Get("Content-Type"), r.Header.Get("Accept")})
	p.mu.Unlock()
	p.wait(r)
	if fault != nil && fault(w, r) {
		return
	}
	p.handler.ServeHTTP(patientWriter{w, p, r}, r)
}

// SetFault puts a fault in, or takes it out with nil.
func (p *Proxy) SetFault(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close() // the peer may have been first
	}
}

// Close drops all connections and all new ones until Open.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut()
}

// Open lets connections in again.
func (p *Proxy) Open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = false
}

// Requests returns those since the last call that match.
func (p *Proxy) Requests(match func(Request) bool) []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Request
	for _, r := range p.requests {
		if match(r) {
			out = append(out, r)
		}
	}
	p.requests = nil
	return out
}

func (p *Proxy) track(c net.Conn, state http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch state {
	case http.StateNew:
		p.conns[c] = struct{}{}
		if p.closed {
			_ = c.Close() // dropping it is the point
		}
	case http.StateClosed, http.StateHijacked:
		delete(p.conns, c)
	}
}
