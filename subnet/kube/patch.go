package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/subnet/claim"
)

// statusPatch is the strategic merge patch that sets or removes annotations and clears NetworkUnavailable if asked to. It
// names nothing else, so that it cannot undo what others write.
func statusPatch(prefix Prefix, annotations map[string]string, condition bool, now metav1.Time) []byte {
	patch := map[string]any{}
	if len(annotations) > 0 {
		values := map[string]any{}
		for key, value := range annotations {
			values[key] = value
			if prefix.Removes(key, value) {
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

// heartbeat is what flannel writes into the condition; programs look for the reason.
func heartbeat(now metav1.Time) corev1.NodeCondition {
	return corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse,
		Reason: "FlannelIsUp", Message: "Flannel is running on this node",
		LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)), LastHeartbeatTime: metav1.NewTime(now.Truncate(time.Second)),
	}
}

// describe is keys and values without the prefix, cut to what a log line can take.
func describe(prefix Prefix, annotations map[string]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		value := claim.Limit(annotations[key], 80)
		if value == "" {
			value = "(none)"
		}
		parts = append(parts, strings.TrimPrefix(key, string(prefix))+"="+value)
	}
	return strings.Join(parts, " ")
}
