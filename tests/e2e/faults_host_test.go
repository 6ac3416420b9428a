package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// hostFaults are what happens to the other programs of a node.
func hostFaults() []fault {
	return []fault{
		{
			name: "kube-proxy: killed", note: "on all nodes at once", times: 10,
			do: func(t *testing.T) time.Duration { return killOnAll(t, "kube-proxy", "http://127.0.0.1:10256/healthz") },
		},
		{
			name: "kube-proxy: every iptables rule and chain removed", note: "on all nodes; the time is kube-proxy's own, to write them again",
			do: flushIPTables,
		},
		{
			name: "kubelet: killed", note: "on all nodes at once", times: 10,
			do: func(t *testing.T) time.Duration { return killOnAll(t, "kubelet", "http://127.0.0.1:10248/healthz") },
		},
		{
			name: "containerd: killed while eight pods are made", note: "all eight run in the end, and nothing is left of the attempts that were cut off",
			do: killRuntimeDuringADD,
		},
	}
}

// killOnAll ends a program on every node and waits until another process of it says that it is healthy.
func killOnAll(t *testing.T, program, health string) time.Duration {
	t.Helper()
	process := func(ctx context.Context, n *cluster.Node) string {
		out, _ := n.Exec(ctx, "pgrep", "-x", program) // none is none
		return strings.TrimSpace(out)
	}
	before := map[string]string{}
	for _, n := range suite.Nodes() {
		if before[n.Name] = process(t.Context(), n); before[n.Name] == "" {
			t.Fatalf("no %s runs on %s", program, n.Name)
		}
	}
	must(t, onEachNode(func(ctx context.Context, n *cluster.Node) error {
		_, err := n.Exec(ctx, "pkill", "-KILL", "-x", program)
		return err
	}))
	return eventually(t, 2*time.Minute, program+" is back on every node", func() error {
		return onEachNode(func(ctx context.Context, n *cluster.Node) error {
			if pid := process(ctx, n); pid == "" || pid == before[n.Name] {
				return fmt.Errorf("on %s it is process %q", n.Name, pid)
			}
			_, err := n.Exec(ctx, curl(health)...)
			return err
		})
	})
}

// flushIPTables removes what kube-proxy, the kubelet and the CNI plugins have written. Nothing of ours is there.
func flushIPTables(t *testing.T) time.Duration {
	must(t, onEachNode(func(ctx context.Context, n *cluster.Node) error {
		_, err := n.Exec(ctx, "sh", "-ec", `for program in iptables ip6tables; do for table in nat filter mangle; do $program -w -t $table -F; $program -w -t $table -X; done; done`)
		return err
	}))
	return eventually(t, 2*time.Minute, "kube-proxy has written its rules again", func() error {
		return onEachNode(func(ctx context.Context, n *cluster.Node) error {
			_, err := n.Exec(ctx, "curl", "-skf", "-m", "5", "https://"+net.JoinHostPort(apiService(), "443")+"/readyz")
			return err
		})
	})
}

// killRuntimeDuringADD ends containerd, and with it the plugins that it runs, once the first of the pods' sandboxes is there.
func killRuntimeDuringADD(t *testing.T) time.Duration {
	n := suite.Node(2)
	before := holdings(t, n)
	var manifests strings.Builder
	var specs []podSpec
	for i := range 8 {
		specs = append(specs, podSpec{name: fmt.Sprintf("cut-off-%d", i), node: n.Name})
		manifests.WriteString(specs[i].yaml())
	}
	must(t, suite.Apply(t.Context(), manifests.String()))
	eventually(t, 30*time.Second, "the first address is given", func() error {
		if len(reservations(t, n)) == before.addresses {
			return errors.New("none is")
		}
		return nil
	})
	onHost(t, n.Machine, "pkill", "-KILL", "-x", "containerd")
	start := time.Now()
	pods := startPods(t, specs...) // they are there already; it waits for them
	took := time.Since(start)
	seen := map[string]string{}
	remove := []string{"delete", "--timeout=60s"}
	for _, p := range pods {
		if other, twice := seen[p.IP]; twice {
			t.Errorf("%s and %s both have %s", p.Name, other, p.IP)
		}
		seen[p.IP] = p.Name
		onHost(t, suite.Node(1).Machine, "ping", "-c", "1", "-W", "2", p.IP)
		remove = append(remove, "pod/"+p.Name)
	}
	_, err := suite.Kubectl(t.Context(), remove...)
	must(t, err)
	eventually(t, 90*time.Second, "nothing is left of the pods", func() error {
		if now := holdings(t, n); now != before {
			return fmt.Errorf("the node held %+v and holds %+v", before, now)
		}
		return nil
	})
	return took
}

// held is how much a node has of what each pod brings.
type held struct {
	addresses, ports, records int
}

// holdings counts the addresses that are given away, the bridge's ports, and the shim's records of what it made.
func holdings(t *testing.T, n *cluster.Node) held {
	t.Helper()
	ports := onHost(t, n.Machine, "sh", "-c", "ip -o link show master cni0 | wc -l")
	records := onHost(t, n.Machine, "sh", "-c", "ls /var/lib/cni/flannel | grep -c '^[0-9a-f]*$'")
	h := held{addresses: len(reservations(t, n))}
	if _, err := fmt.Sscan(ports+" "+records, &h.ports, &h.records); err != nil {
		t.Fatalf("count the bridge's ports and the records: %q, %q: %v", ports, records, err)
	}
	return h
}
