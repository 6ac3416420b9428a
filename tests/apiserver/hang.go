package apiserver

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// Hang makes the proxy one that takes connections and requests and says nothing more, on none of them; watches that are
// under way fall silent too. Unhang lets all of it go on.
func (p *Proxy) Hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hung == nil {
		p.hung = make(chan struct{})
	}
}

// Unhang ends Hang.
func (p *Proxy) Unhang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hung != nil {
		close(p.hung)
		p.hung = nil
	}
}

// wait returns when the proxy does not hang, or the request has ended.
func (p *Proxy) wait(r *http.Request) {
	p.mu.Lock()
	hung := p.hung
	p.mu.Unlock()
	if hung == nil {
		return
	}
	select {
	case <-hung:
	case <-r.Context().Done():
	}
}

// patientWriter writes nothing while the proxy hangs.
type patientWriter struct {
	http.ResponseWriter
	proxy   *Proxy
	request *http.Request
}

// Write implements http.ResponseWriter.
func (w patientWriter) Write(b []byte) (int, error) {
	w.proxy.wait(w.request)
	return w.ResponseWriter.Write(b)
}

// Unwrap lets the reverse proxy flush.
func (w patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Forget ends all connections as a power cut does: without the orderly end that a closed one has. Whoever is to know
// nothing of it must not be reached by the reset: block the way first.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if secure, ok := c.(*tls.Conn); ok {
			c = secure.NetConn()
		}
		if plain, ok := c.(*net.TCPConn); ok {
			_ = plain.SetLinger(0) // it may have ended
		}
		_ = c.Close()
	}
}

// Ports lists the clients' ports of all connections.
func (p *Proxy) Ports() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var ports []int
	for c := range p.conns {
		if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			ports = append(ports, a.Port)
		}
	}
	return ports
}

// CutEvery closes all connections each period, until the function that it returns is called.
func (p *Proxy) CutEvery(period time.Duration) (stop func()) {
	ticker := time.NewTicker(period)
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
				p.Cut()
			}
		}
	}()
	return func() { ticker.Stop(); close(ended); <-done }
}
