package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
)

func TestContactTellsNewsOnce(t *testing.T) {
	var c contact
	refused := errors.New("connection refused")
	for i, step := range []struct {
		err  error
		news bool
		lost time.Time
	}{
		{refused, true, born(1)},
		{fmt.Errorf("other: %w", refused), false, born(1)},
		{nil, true, time.Time{}},
		{nil, false, time.Time{}},
		{refused, true, born(5)},
	} {
		news := c.note(step.err, born(i+1))
		if _, lost, _ := c.state(); news != step.news || lost != step.lost {
			t.Errorf("step %d: news %v lost %v, want %v %v", i, news, lost, step.news, step.lost)
		}
	}
}

// A dial that times out says that it is a context's deadline; it is none, and must count.
func TestWitnessCountsDialTimeoutsAndNotOurOwnEnds(t *testing.T) {
	w := witness{next: roundTrip(func(*http.Request) (*http.Response, error) {
		return nil, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	}), client: &Client{results: map[string]int64{}}}
	ctx, cancel := context.WithCancel(t.Context())
	ctx, last := withOutcome(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://x", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.RoundTrip(req); err == nil || last.err == nil {
		t.Errorf("%v %v", err, last.err)
	}
	if _, lost, _ := w.client.way.state(); lost.IsZero() {
		t.Error("a dial timeout is not noted")
	}
	if got := w.client.Results(); len(got) != 1 || got[ResultUnreachable] != 1 {
		t.Errorf("counted %v", got)
	}
	w.client = &Client{results: map[string]int64{}}
	cancel()
	_, _ = w.RoundTrip(req)
	if heard, _, _ := w.client.way.state(); heard {
		t.Error("our own end is noted")
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestX07APasswordInTheServersAddressIsInNoMessage(t *testing.T) {
	c, err := NewClient(ClientOptions{APIURL: "https://admin:s3cret@192.0.2.1:6443"})
	if err != nil {
		t.Fatal(err)
	}
	if text := Explain(c.Server, io.EOF); strings.Contains(text, "s3cret") || !strings.Contains(text, "192.0.2.1:6443") {
		t.Error(text)
	}
	for _, plain := range []string{"https://192.0.2.1:6443", "192.0.2.1:6443", "[fd00::1]:6443", "", "%"} {
		if got := Redacted(plain); got != plain {
			t.Errorf("%q becomes %q", plain, got)
		}
	}
}

func TestExplainSaysWhatToLookAt(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	for want, err := range map[string]error{
		"API server https://10.96.0.1:443 not reachable: dial tcp: i/o timeout (if this is the kubernetes Service's address, kube-proxy": errors.New("dial tcp: i/o timeout"),
		"API server https://10.96.0.1:443 refuses: nodes is forbidden: no (see the ClusterRole":                                          apierrors.NewForbidden(nodes, "", errors.New("no")),
		"API server https://10.96.0.1:443 does not accept our credentials: who (see the ServiceAccount's token":                          apierrors.NewUnauthorized("who"),
		"API server https://10.96.0.1:443 answers: Internal error occurred: x":                                                           apierrors.NewInternalError(errors.New("x")),
	} {
		if got := Explain("https://10.96.0.1:443", err); !strings.HasPrefix(got, want) && !strings.Contains(got, strings.TrimSuffix(want, ": no (see the ClusterRole")) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestAttemptGoesOnAboutOnceASecondUntilTheServerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, calls := time.Now(), 0
		got, err := attempt(t.Context(), func(error) {}, func() (int, error) {
			calls++
			if time.Since(began) < time.Minute {
				return 0, errors.New("connection refused")
			}
			return 7, nil
		})
		if took := time.Since(began); got != 7 || err != nil || took > time.Minute+time.Second || calls < 60 || calls > 102 {
			t.Errorf("%v %v after %v and %d calls", got, err, took, calls)
		}
		if _, err := attempt(t.Context(), func(error) {}, func() (int, error) { return 0, apierrors.NewInternalError(io.EOF) }); !apierrors.IsInternalError(err) {
			t.Errorf("an answer of the server: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := attempt(ctx, func(error) {}, func() (int, error) { return 0, io.EOF }); !errors.Is(err, io.EOF) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestNewClientTellsWhatIsWrongWithItsOptions(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := NewClient(ClientOptions{}); err == nil || !strings.Contains(err.Error(), "--kubeconfig-file") {
		t.Errorf("nothing given: %v", err)
	}
	if _, err := NewClient(ClientOptions{KubeconfigFile: filepath.Join(t.TempDir(), "none")}); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("no such file: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	if _, err := NewClient(ClientOptions{}); err == nil || !strings.Contains(err.Error(), "ServiceAccount") {
		t.Errorf("no token: %v", err)
	}
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := NewClient(ClientOptions{KubeconfigFile: bad, APIURL: "http://127.0.0.1:1"}); err != nil || c.Server != "http://127.0.0.1:1" {
		t.Errorf("--kube-api-url wins over the file: %v", err)
	}
	if _, err := NewClient(ClientOptions{APIURL: "://"}); err == nil {
		t.Error("no URL, but accepted")
	}
}

func TestNodeNameNeedsNothingWhenItIsGiven(t *testing.T) {
	for src, want := range map[NameSource]string{
		{NodeName: "n1", PodName: "p"}: "n1",
	} {
		if got, err := NodeName(t.Context(), nil, src, nil); got != want || err != nil {
			t.Errorf("%+v: %q %v", src, got, err)
		}
	}
	for _, src := range []NameSource{{}, {PodName: "p"}, {PodNamespace: "ns"}} {
		if _, err := NodeName(t.Context(), nil, src, nil); !errors.Is(err, ErrNoName) {
			t.Errorf("%+v: %v", src, err)
		}
	}
}

func TestNodeNameWaitsForAPodThatIsNotOnANodeYet(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}}
	fakes := fake.NewClientset(pod)
	client := &Client{Interface: fakes, Server: "fake"}
	var reasons []string
	name, err := NodeName(t.Context(), client, NameSource{PodName: "p", PodNamespace: "ns"}, func(r string) {
		reasons = append(reasons, r)
		pod.Spec.NodeName = "n1"
		if _, err := fakes.CoreV1().Pods("ns").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	})
	if name != "n1" || err != nil || len(reasons) != 1 || !strings.HasPrefix(reasons[0], "pod ns/p is not on a node yet") {
		t.Errorf("%q %v %q", name, err, reasons)
	}
}

func TestNodeNameReportsARefusalAndEndsWithItsContext(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"pods is forbidden"}`)
	}))
	defer server.Close()
	client, err := NewClient(ClientOptions{APIURL: server.URL, UserAgent: "weft/test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var reason string
	_, err = NodeName(ctx, client, NameSource{PodName: "p", PodNamespace: "ns"}, func(r string) { reason = r; cancel() })
	if !errors.Is(err, context.Canceled) || !strings.Contains(reason, "pods is forbidden") || !strings.Contains(reason, "NODE_NAME") {
		t.Errorf("%v: %s", err, reason)
	}
}

func TestAttemptFollowsWhatTheServerSays(t *testing.T) {
	answer := func(code int, reason metav1.StatusReason, after int32) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Details: &metav1.StatusDetails{RetryAfterSeconds: after},
		}}
	}
	away := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	var tooLarge *apierrors.StatusError
	if !errors.As(answer(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, 1), &tooLarge) {
		t.Fatal("the answer is no status")
	}
	tooLarge.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	for name, c := range map[string]struct {
		answers []error
		calls   int // how many there are
		noted   int
		within  [2]time.Duration
		err     error
	}{
		"well at once":                   {[]error{nil}, 1, 1, [2]time.Duration{0, 0}, nil},
		"away twice":                     {[]error{away, away, nil}, 3, 3, [2]time.Duration{1200 * time.Millisecond, 2 * time.Second}, nil},
		"429 with a time":                {[]error{answer(429, metav1.StatusReasonTooManyRequests, 4), nil}, 2, 2, [2]time.Duration{4 * time.Second, 5 * time.Second}, nil},
		"429 with a time without end":    {[]error{answer(429, metav1.StatusReasonTooManyRequests, 86400), nil}, 2, 2, [2]time.Duration{30 * time.Second, 38 * time.Second}, nil},
		"500 is for the reflector":       {[]error{answer(500, metav1.StatusReasonInternalError, 0), nil}, 1, 1, [2]time.Duration{0, 0}, answer(500, metav1.StatusReasonInternalError, 0)},
		"a version it has never seen":    {[]error{tooLarge, nil}, 1, 1, [2]time.Duration{0, 0}, tooLarge},
		"401 once, for an old token":     {[]error{answer(401, metav1.StatusReasonUnauthorized, 0), nil}, 2, 1, [2]time.Duration{0, 0}, nil},
		"401 and again, for a wrong one": {[]error{answer(401, metav1.StatusReasonUnauthorized, 0), answer(401, metav1.StatusReasonUnauthorized, 0)}, 2, 1, [2]time.Duration{0, 0}, answer(401, metav1.StatusReasonUnauthorized, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls, noted, began := 0, 0, time.Now()
				_, err := attempt(t.Context(), func(error) { noted++ }, func() (int, error) { calls++; return 0, c.answers[calls-1] })
				if took := time.Since(began); took < c.within[0] || took > c.within[1] {
					t.Errorf("it took %v, want %v", took, c.within)
				}
				if calls != c.calls || noted != c.noted || fmt.Sprint(err) != fmt.Sprint(c.err) {
					t.Errorf("%d calls, %d notes, %v; want %d, %d, %v", calls, noted, err, c.calls, c.noted, c.err)
				}
			})
		})
	}
}
