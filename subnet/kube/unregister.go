package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/subnet/claim"
)

// Unregister takes our annotations off the Node, those that an administrator writes excepted, and the condition that says
// that our network is up: one that somebody else has written by now, for another network, stays. A Node that is gone is fine.
func (r *Registrar) Unregister(ctx context.Context) error {
	read, cancel := call(ctx)
	defer cancel()
	node, err := r.cfg.Client.CoreV1().Nodes().Get(read, r.cfg.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read node %q: %w", r.cfg.NodeName, err)
	}
	patch := map[string]any{}
	values := map[string]any{}
	_, outputs := claim.AllKeys()
	for _, key := range outputs {
		if _, there := node.Annotations[r.cfg.Prefix.Key(key)]; there {
			values[r.cfg.Prefix.Key(key)] = nil
		}
	}
	if len(values) > 0 {
		patch["metadata"] = map[string]any{"annotations": values}
	}
	if slices.ContainsFunc(node.Status.Conditions, isOurCondition) {
		patch["status"] = map[string]any{"conditions": []map[string]string{{"$patch": "delete", "type": string(corev1.NodeNetworkUnavailable)}}}
	}
	if len(patch) == 0 {
		return nil
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("write the patch for node %q: %w", r.cfg.NodeName, err)
	}
	if err := r.patch(ctx, body); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("take the announcement off node %q: %w", r.cfg.NodeName, err)
	}
	r.uid, r.sent = "", nil
	return nil
}

// isOurCondition recognises the condition by the reason that flannel and we write.
func isOurCondition(c corev1.NodeCondition) bool {
	return c.Type == corev1.NodeNetworkUnavailable && c.Reason == heartbeat(metav1.Time{}).Reason
}
