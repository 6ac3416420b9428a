package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/claim"
)

// repeat is how often one Event is written again while its cause lasts; the API server forgets Events after an hour.
const repeat = 20 * time.Minute

// rewrite is when one is tried again that could not be written: the API server was away or had too much to do.
const rewrite = 30 * time.Second

// mostEvents bounds what is written and remembered in a repeat period, whatever texts the annotations of other nodes
// bring about.
const mostEvents = 50

// Events writes Events about the own Node. The name of an Event follows from what it says, so that saying it again, even
// by the next process, counts up the one that is there. Nothing depends on Events: errors are logged and that is all.
// A nil *Events writes none.
type Events struct {
	client *Client
	log    *slog.Logger

	// mu protects last; several loops report.
	mu   sync.Mutex
	last map[string]time.Time // when each was last written
}

// NewEvents makes a writer of Events.
func NewEvents(client *Client, log *slog.Logger) *Events {
	return &Events{client: client, log: log, last: map[string]time.Time{}}
}

// Report writes what is known of the own node's troubles: the problems of a snapshot, and what keeps it from taking part
// at all, if only an administrator can mend that.
func (e *Events) Report(ctx context.Context, s subnet.Snapshot, trouble error) {
	e.problems(ctx, s)
	if reason := reasonOf(trouble); reason != "" {
		e.Warn(ctx, s.Self, reason, trouble.Error())
	}
}

// reasonOf is the Event reason of a trouble, or "" for one that waiting cures.
func reasonOf(trouble error) string {
	switch {
	case errors.Is(trouble, subnet.ErrNoPodCIDR):
		return ReasonNoPodCIDR
	case errors.Is(trouble, subnet.ErrOutsideNetwork):
		return ReasonOutsideNetwork
	case errors.Is(trouble, subnet.ErrAddressTaken):
		return ReasonPublicIPConflict
	}
	return ""
}

// problems writes the own node's problems of a snapshot.
func (e *Events) problems(ctx context.Context, s subnet.Snapshot) {
	for _, p := range SelfProblems(s) {
		e.Warn(ctx, s.Self, p.Reason, p.Text)
	}
}

// Warn writes a Warning about the own Node unless the same one was written lately.
func (e *Events) Warn(ctx context.Context, self subnet.Self, reason, text string) {
	if e == nil || !self.Exists || e.client.Reason() != "" { // a server that is away is told when it is back
		return
	}
	text = claim.Limit(text, 1000) // the API server refuses more than 1,024 bytes
	name := eventName(self, reason, text)
	now := time.Now()
	if !e.due(name, now) {
		return
	}
	ev := event(self, reason, text)
	ev.Name, ev.FirstTimestamp, ev.LastTimestamp = name, metav1.NewTime(now), metav1.NewTime(now)
	if err := e.write(ctx, ev); err != nil {
		e.log.Debug("the Event could not be written", "reason", reason, "err", err)
		if !apierrors.IsForbidden(err) { // as under flannel's own ClusterRole
			e.postpone(name, now)
		}
	}
}

// postpone makes an Event that could not be written due again before long.
func (e *Events) postpone(name string, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last[name] = now.Add(rewrite - repeat)
}

// due tells whether an Event may be written now, and notes that it was.
func (e *Events) due(name string, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.last, func(_ string, at time.Time) bool { return now.Sub(at) >= repeat })
	if _, lately := e.last[name]; lately || len(e.last) >= mostEvents {
		return false
	}
	e.last[name] = now
	return true
}

func (e *Events) write(ctx context.Context, ev *corev1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // the caller has better things to do
	defer cancel()
	events := e.client.CoreV1().Events(ev.Namespace)
	_, err := events.Create(ctx, ev, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	// The count is not read first: that would need the right to get Events. Two is "more than once".
	patch, err := json.Marshal(map[string]any{"count": 2, "lastTimestamp": ev.LastTimestamp})
	if err != nil {
		return err
	}
	_, err = events.Patch(ctx, ev.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

// event is a Warning about the own Node, without name and times.
func event(self subnet.Self, reason, text string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault}, // where Events of Nodes live
		InvolvedObject: corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: self.Name, UID: types.UID(self.UID)},
		Reason:         reason, Message: text, Type: corev1.EventTypeWarning,
		Source: corev1.EventSource{Component: "flanneld", Host: self.Name},
		Count:  1,
	}
}

// eventName is the same for the same words about the same Node.
func eventName(self subnet.Self, reason, text string) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s", self.UID, reason, text)
	return fmt.Sprintf("%s.%016x", claim.Limit(self.Name, 200), h.Sum64())
}
