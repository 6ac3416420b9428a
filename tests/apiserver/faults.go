package apiserver

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Answer answers every request with an error in the API's own form. 429 asks for another try after a second, 410 says that
// the version asked for is forgotten.
func Answer(code int) Fault {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		status := metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code),
			Message: "the test says no",
		}
		w.Header().Set("Content-Type", "application/json")
		switch code {
		case http.StatusTooManyRequests:
			status.Reason = metav1.StatusReasonTooManyRequests
			w.Header().Set("Retry-After", "1")
		case http.StatusGone:
			status.Reason = metav1.StatusReasonExpired
		case http.StatusInternalServerError:
			status.Reason = metav1.StatusReasonInternalError
		case http.StatusUnauthorized:
			status.Reason = metav1.StatusReasonUnauthorized
		}
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(status) // the client may be gone
		return true
	}
}

// Slow keeps every request waiting before it is passed on.
func Slow(by time.Duration) Fault {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-time.After(by):
			return false
		case <-r.Context().Done():
			return true
		}
	}
}

// Only limits a fault to the requests that match.
func Only(match func(*http.Request) bool, f Fault) Fault {
	return func(w http.ResponseWriter, r *http.Request) bool { return match(r) && f(w, r) }
}

// First limits a fault to the first n requests that it meets.
func First(n int, f Fault) Fault {
	var met atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) bool { return met.Add(1) <= int64(n) && f(w, r) }
}

// Each tries faults in turn until one answers.
func Each(faults ...Fault) Fault {
	return func(w http.ResponseWriter, r *http.Request) bool {
		for _, f := range faults {
			if f(w, r) {
				return true
			}
		}
		return false
	}
}

// Lagging is a server whose cache stands still at a list of Nodes, in JSON: it answers lists from there, unless asked for
// the newest out of etcd, and knows no streaming lists.
func Lagging(list []byte) Fault {
	return Each(
		Only(IsStreamedList, Answer(http.StatusUnprocessableEntity)),
		Only(func(r *http.Request) bool { return IsList(r) && r.URL.Query().Get("resourceVersion") != "" },
			func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write(list) // the client may be gone
				return true
			}))
}

// IsList matches lists of Nodes.
func IsList(r *http.Request) bool {
	return r.URL.Path == "/api/v1/nodes" && r.Method == http.MethodGet && r.URL.Query().Get("watch") == ""
}

// IsWatch matches watches of Nodes, those that begin with a list too.
func IsWatch(r *http.Request) bool {
	return r.URL.Path == "/api/v1/nodes" && r.URL.Query().Get("watch") != ""
}

// IsStreamedList matches watches that begin with a list.
func IsStreamedList(r *http.Request) bool { return r.URL.Query().Get("sendInitialEvents") == "true" }
