package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// PodNetwork is the network namespace of a pod on this node. What runs there is a process of this machine: neither the API
// server nor the kubelet nor the runtime must be there for it to go on.
func (n *Node) PodNetwork(ctx context.Context, pod string) (Machine, error) {
	id, err := n.Exec(ctx, "crictl", "pods", "--name", "^"+pod+"$", "--state", "ready", "--latest", "--quiet")
	if err != nil {
		return Machine{}, fmt.Errorf("find the sandbox of %s: %w", pod, err)
	}
	if id = strings.TrimSpace(id); id == "" {
		return Machine{}, fmt.Errorf("find the sandbox of %s: there is none on %s", pod, n.Name)
	}
	text, err := n.Exec(ctx, "crictl", "inspectp", id)
	if err != nil {
		return Machine{}, fmt.Errorf("look at the sandbox of %s: %w", pod, err)
	}
	var sandbox struct {
		Info struct {
			RuntimeSpec struct {
				Linux struct {
					Namespaces []struct{ Type, Path string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &sandbox); err != nil {
		return Machine{}, fmt.Errorf("look at the sandbox of %s: %w", pod, err)
	}
	for _, ns := range sandbox.Info.RuntimeSpec.Linux.Namespaces {
		if ns.Type == "network" {
			path := strings.TrimPrefix(ns.Path, "/var") // a link to /run, which from here would lead into this machine's
			return Machine{Name: pod, enter: []string{"nsenter", "--net=" + n.Path(path), "--"}, path: n.cluster.programs() + ":"}, nil
		}
	}
	return Machine{}, fmt.Errorf("look at the sandbox of %s: it has no network namespace of its own", pod)
}
