package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// serving starts a health server on a free loopback port and returns a getter.
func serving(t *testing.T, b *board, alive func() error) func(path string) (int, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	h := &health{cfg: Health{IP: netip.MustParseAddr("127.0.0.1"), Port: port}, board: b, alive: alive,
		trusted: func(netip.Addr) bool { return false }, metrics: newMetrics(Version{}, b).handler()}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func(path string) (int, string) {
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
			if err != nil {
				if time.Now().After(end) {
					t.Fatal(err)
				}
				continue
			}
			body, _ := io.ReadAll(r.Body)
			_ = r.Body.Close()
			return r.StatusCode, strings.TrimSpace(string(body))
		}
	}
}

func TestD12ReadinessTellsTheTruthWithItsReasons(t *testing.T) {
	b := newBoard(quiet(), "device")
	get := serving(t, b, func() error { return nil })
	if code, body := get("/healthz"); code != 200 || body != "flanneld is running" {
		t.Errorf("healthz: %d %q", code, body)
	}
	if code, body := get("/readyz"); code != 503 || body != "flanneld is not ready yet\ndevice: starting" {
		t.Errorf("readyz: %d %q", code, body)
	}
	b.set("device", nil)
	if code, body := get("/readyz"); code != 200 || body != "flanneld is ready" {
		t.Errorf("readyz: %d %q", code, body)
	}
	b.setStale(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	if code, body := get("/readyz"); code != 200 || body != "flanneld is ready\nstale: API away since 2026-01-02T03:04:05Z" {
		t.Errorf("readyz: %d %q", code, body)
	}
	b.setStale(time.Time{})
	b.set("device", errors.New("gone"))
	if code, _ := get("/readyz"); code != 503 {
		t.Errorf("readyz without a device: %d", code)
	}
	if code, body := get("/metrics"); code != 200 || !strings.Contains(body, "weft_ready 0") {
		t.Errorf("metrics: %d", code)
	}
}

func TestLivenessFailsWhenALoopHangs(t *testing.T) {
	b := newBoard(quiet(), "health")
	get := serving(t, b, func() error { return errors.New("loop x has not turned") })
	if code, body := get("/healthz"); code != 503 || !strings.Contains(body, "loop x") {
		t.Errorf("healthz: %d %q", code, body)
	}
}

func TestX05OthersSeeTheStateAndNothingElse(t *testing.T) {
	b := newBoard(quiet(), "device")
	h := &health{board: b, alive: func() error { return nil }, trusted: func(netip.Addr) bool { return false }, metrics: http.NotFoundHandler()}
	bridge := net.Addr(&net.TCPAddr{IP: net.IPv4(10, 244, 1, 1), Port: 8081})
	for path, want := range map[string]string{"/readyz": "flanneld is not ready yet", "/metrics": "404 page not found"} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		w := httptest.NewRecorder()
		h.mux().ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, bridge)))
		if got := strings.TrimSpace(w.Body.String()); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestAnAddressOfAnotherNodeIsNamedWithItsFlag(t *testing.T) {
	b := newBoard(quiet(), "health")
	changed := b.changed(t.Context())
	h := &health{cfg: Health{IP: netip.MustParseAddr("192.0.2.77"), Port: 8081}, board: b}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.run(ctx) }()
	<-changed
	if v := b.verdict(); v.Ready || !strings.Contains(v.String(), "this node has no such address: see --healthz-ip") {
		t.Errorf("verdict: %v", v)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAPortThatIsTakenIsReportedAndTriedAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := newBoard(quiet(), "health")
	changed := b.changed(t.Context())
	h := &health{cfg: Health{IP: netip.MustParseAddr("127.0.0.1"), Port: l.Addr().(*net.TCPAddr).Port}, board: b}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.run(ctx) }()
	<-changed
	if v := b.verdict(); v.Ready || !strings.Contains(v.String(), "--healthz-port") || !strings.Contains(v.String(), "ss -ltnp sport = :") {
		t.Errorf("verdict: %v", v)
	}
	_ = l.Close()
	<-changed
	if v := b.verdict(); !v.Ready {
		t.Errorf("verdict: %v", v)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
