package backends

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

// far is an API server beyond the underlay: it keeps what the nodes announce, and answers who asks as soon as it has anything
// new. Questions and answers are lost and delayed as pods' packets are.
type far struct {
	mu      sync.Mutex // guards what follows
	said    map[string]subnet.Peer
	version int
	news    chan struct{} // closed when the version goes up
}

// farPort is where it listens.
const farPort = 8080

// cluster is what the far API server says.
type cluster struct {
	Version int
	Peers   map[string]subnet.Peer
}

// newFar starts the server on the underlay's switch.
func (w *world) newFar() {
	w.Helper()
	f := &far{said: map[string]subnet.Peer{}, news: make(chan struct{})}
	server := &http.Server{Handler: f, ReadHeaderTimeout: time.Minute}
	l := w.fabric.Switch.Listen(netip.AddrPortFrom(netip.MustParseAddr("192.168.50.254"), farPort))
	go func() { _ = server.Serve(l) }() // until it is closed
	w.Cleanup(func() { _ = server.Close() })
}

// ServeHTTP takes a Node with POST, and gives all of them with GET when there is a newer version than the one that is known.
func (f *far) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		var p subnet.Peer
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
			http.Error(out, err.Error(), http.StatusBadRequest)
			return
		}
		f.take(p)
		return
	}
	known, err := strconv.Atoi(r.URL.Query().Get("known"))
	if err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	for {
		c, news := f.look()
		if c.Version > known {
			_ = json.NewEncoder(out).Encode(c) // who does not get it asks again
			return
		}
		select {
		case <-news:
		case <-r.Context().Done():
			return
		}
	}
}

func (f *far) take(p subnet.Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.said[p.Name] == p {
		return
	}
	f.said[p.Name] = p
	f.version++
	close(f.news)
	f.news = make(chan struct{})
}

func (f *far) look() (cluster, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cluster{f.version, maps.Clone(f.said)}, f.news
}

// caller is a node's client of the far server.
type caller struct {
	http  http.Client
	mu    sync.Mutex // guards known and told
	known cluster
	told  subnet.Peer
}

// newCaller makes a client on a node.
func newCaller(ns *nstest.NS) *caller {
	return &caller{http: http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = ns.Do(func() error {
			conn, err = (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}}}}
}

// follow asks for news until the end, and pokes the node for each.
func (c *caller) follow(ctx context.Context, poke func()) {
	for ctx.Err() == nil {
		c.mu.Lock()
		known := c.known.Version
		c.mu.Unlock()
		var got cluster
		if err := c.call(ctx, http.MethodGet, fmt.Sprintf("?known=%d", known), nil, &got); err != nil {
			continue
		}
		c.mu.Lock()
		c.known = got
		c.mu.Unlock()
		poke()
	}
}

// announce tells the server what the node says, if it says anything new.
func (c *caller) announce(ctx context.Context, p subnet.Peer) error {
	if c.told == p {
		return nil
	}
	body, err := json.Marshal(p)
	if err == nil {
		err = c.call(ctx, http.MethodPost, "", body, nil)
	}
	if err == nil {
		c.told = p
	}
	return err
}

// peers are those of the last answer.
func (c *caller) peers() map[string]subnet.Peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known.Peers
}

func (c *caller) call(ctx context.Context, method, query string, body []byte, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	url := fmt.Sprintf("http://192.168.50.254:%d/%s", farPort, query)
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}
