package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

// health serves /healthz, /readyz and /metrics from the first moment on.
type health struct {
	cfg     Health
	board   *board
	alive   func() error          // nil while every loop turns
	trusted func(netip.Addr) bool // a local address that reasons and metrics may be read through
	metrics http.Handler
}

// run listens until ctx ends. A port that is taken is reported and tried again: the data plane does not depend on it.
func (h *health) run(ctx context.Context) error {
	if h.cfg.Port == 0 {
		h.board.set("health", nil)
		<-ctx.Done()
		return nil
	}
	server := &http.Server{Handler: h.mux(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	address := net.JoinHostPort(h.cfg.IP.String(), strconv.Itoa(h.cfg.Port))
	for {
		err := h.serve(ctx, server, address)
		if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		h.board.set("health", fmt.Errorf("listen on %s for --healthz-port: %w%s", address, err, h.cure(err)))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

func (h *health) serve(ctx context.Context, server *http.Server, address string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	h.board.set("health", nil)
	return server.Serve(l)
}

// cure is what helps against an address that cannot be had; empty when that is not known.
func (h *health) cure(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf(" (ss -ltnp sport = :%d names the program that has it)", h.cfg.Port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return " (this node has no such address: see --healthz-ip)"
	}
	return ""
}

func (h *health) mux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := h.alive(); err != nil {
			http.Error(w, h.detail(r, "flanneld is stuck", err.Error()), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprint(w, "flanneld is running")
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		v := h.board.verdict()
		var notes []string
		for _, note := range v.Notes {
			notes = append(notes, "note: "+note)
		}
		if !v.Ready {
			http.Error(w, h.detail(r, "flanneld is not ready yet", append(v.Reasons, notes...)...), http.StatusServiceUnavailable)
			return
		}
		if !v.Stale.IsZero() {
			notes = append([]string{"stale: API away since " + v.Stale.UTC().Format(time.RFC3339)}, notes...)
		}
		_, _ = fmt.Fprint(w, h.detail(r, "flanneld is ready", notes...))
	})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
		if !h.inside(r) {
			http.NotFound(w, r)
			return
		}
		h.metrics.ServeHTTP(w, r)
	})
	return mux
}

// detail adds the reasons for those who may see them. Pods reach the server through the bridge's address, and scanners
// through any: they get the state and nothing else.
func (h *health) detail(r *http.Request, state string, reasons ...string) string {
	if !h.inside(r) {
		return state
	}
	for _, reason := range reasons {
		state += "\n" + reason
	}
	return state
}

func (h *health) inside(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	ap, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return false
	}
	a := ap.Addr().Unmap()
	return a.IsLoopback() || h.trusted(a)
}
