package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestGuardAsksOutOfEtcdWhenAListIsOlderThanWhatIsKnown has servers that answer lists, asked by some version, with another.
func TestGuardAsksOutOfEtcdWhenAListIsOlderThanWhatIsKnown(t *testing.T) {
	tooLarge := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}}}}
	for name, c := range map[string]struct {
		known string
		ask   metav1.ListOptions
		has   map[string]string // what is asked for -> what comes
		asked string            // all that was asked for
		want  string            // what comes out
		after string            // what is known then
		words string
	}{
		"nothing is known":              {"", metav1.ListOptions{ResourceVersion: "0"}, map[string]string{"0": "5"}, "0", "5", "", ""},
		"the first list, and a memory":  {"7", metav1.ListOptions{ResourceVersion: "0", Limit: 500}, map[string]string{"7 NotOlderThan": "9"}, "7 NotOlderThan", "9", "7", ""},
		"a server that lags all alike":  {"7", metav1.ListOptions{ResourceVersion: "0"}, map[string]string{"7 NotOlderThan": "5", "": "9"}, "7 NotOlderThan, ", "9", "7", "older than what is known"},
		"in the middle of a run":        {"7", metav1.ListOptions{ResourceVersion: "7"}, map[string]string{"7": "6", "": "8"}, "7, ", "8", "7", "older than what is known"},
		"a restored backup":             {"7", metav1.ListOptions{ResourceVersion: "7"}, map[string]string{"7": "3", "": "4"}, "7, ", "4", "4", "gone back in time"},
		"out of etcd from the start":    {"7", metav1.ListOptions{}, map[string]string{"": "4"}, "", "4", "4", "gone back in time"},
		"a version it has never seen":   {"7", metav1.ListOptions{ResourceVersion: "7"}, map[string]string{"": "8"}, "7, ", "8", "7", ""},
		"a second page is not judged":   {"7", metav1.ListOptions{Continue: "x"}, map[string]string{"": "4"}, "", "4", "7", ""},
		"versions that are no numbers":  {"7", metav1.ListOptions{ResourceVersion: "7"}, map[string]string{"7": "abc"}, "7", "abc", "7", ""},
		"a memory that is not a number": {"abc", metav1.ListOptions{ResourceVersion: "0"}, map[string]string{"0": "5"}, "0", "5", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var n newest
			n.see(c.known)
			var asked []string
			var said strings.Builder
			kind := n.guard(Kind{Name: "nodes", List: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
				key := strings.TrimSpace(o.ResourceVersion + " " + string(o.ResourceVersionMatch))
				asked = append(asked, key)
				if o.ResourceVersionMatch != "" && o.Limit != 0 {
					t.Error("a limit")
				}
				version, there := c.has[key]
				if !there {
					return nil, tooLarge
				}
				return &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: version}}, nil
			}}, &Client{results: map[string]int64{}}, slog.New(slog.NewTextHandler(&said, nil)))
			obj, err := kind.List(t.Context(), c.ask)
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("asked %q, came %s, known %q", strings.Join(asked, ", "), obj.(*metav1.List).ResourceVersion, n.String())
			if diff := cmp.Diff(fmt.Sprintf("asked %q, came %s, known %q", c.asked, c.want, c.after), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if !strings.Contains(said.String(), c.words) || c.words == "" && said.Len() > 0 {
				t.Errorf("said %q, want %q", said.String(), c.words)
			}
		})
	}
}

func TestStoreTakesNoListThatIsOlderThanWhatItHas(t *testing.T) {
	s, _ := counted()
	if err := s.Replace([]any{named("b", "1", nil)}, "10"); err != nil {
		t.Fatal(err)
	}
	s.UpdateResourceVersion("12")
	if err := s.Replace(nil, "11"); err == nil || s.names() != "b/1" {
		t.Errorf("%v, %s", err, s.names())
	}
	s.newest.expect(true)
	if err := s.Replace([]any{named("c", "2", nil)}, "5"); err != nil || s.names() != "c/2" || s.newest.String() != "5" {
		t.Errorf("streamed out of etcd: %v, %s at %s", err, s.names(), s.newest.String())
	}
	s.newest.expect(false)
	if err := s.Replace(nil, "12"); err != nil || s.names() != "" {
		t.Errorf("%v, %s", err, s.names())
	}
}
