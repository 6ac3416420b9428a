package kube

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// statusPatch is the strategic merge patch that sets or, for an empty value, removes annotations and clears
// NetworkUnavailable if asked to. It names nothing else, so that it cannot undo what others write.
func statusPatch(annotations map[string]string, condition bool, now metav1.Time) []byte {
	patch := map[string]any{}
	if len(annotations) > 0 {
		values := map[string]any{}
		for key, value := range annotations {
			values[key] = value
			if value == "" {
				values[key] = nil
			}
		}
		patch["metadata"] = map[string]any{"annotations": values}
	}
	if condition {
		patch["status"] = map[string]any{"conditions": []corev1.NodeCondition{heartbeat(now)}}
	}
	body, err := json.Marshal(patch)
	if err != nil {
		panic(fmt.Sprintf("marshal a patch: %v", err)) // impossible: maps of text and a struct of text and times
	}
	return body
}
