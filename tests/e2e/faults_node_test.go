package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/e2e/cluster"
	"github.com/weft-cni/weft/tests/lane"
)

// nodeFaults are what happens to whole nodes. Whatever talks to a node that has no power is lost, so only the pods of the
// others are counted.
func nodeFaults() []fault {
	return []fault{
		{
			name: "node: power cut with 50 pods", between: []int{1, 2},
			note: "the time is from the boot to all pods running again, most of it the kubelet's and containerd's; what was on its way to them is lost",
			do:   cutPowerOfACrowd,
		},
		{
			name: "node: deleted and added again with another podCIDR", between: []int{1, 2},
			note: "its pods have addresses that are no longer the node's, so they are deleted with it; the time is from the new Node to kernels that agree with it, the start of the kubelet included",
			do:   addAgainWithAnotherRange,
		},
		{
			name: "nodes: two rebooted with each other's addresses", between: []int{1}, times: 2,
			note: "K-09; what was on its way to their pods is lost; the time is from the announcement of the second to kernels that agree with it",
			do: func(t *testing.T) time.Duration {
				pods := podOnEachNode(t)[1:3]
				before, err := restartCounts(t, pods)
				must(t, err)
				took := rebootSwapped(t, suite.Node(2), suite.Node(3))
				waitRestarted(t, pods, before)
				return took
			},
		},
	}
}

// cutPowerOfACrowd: a boot leaves the reservations of all pods on the disk, and all come back at once.
func cutPowerOfACrowd(t *testing.T) time.Duration {
	const crowd = 50
	n := suite.Node(3)
	var specs []podSpec
	remove := []string{"delete", "--timeout=180s"}
	for i := range crowd {
		specs = append(specs, podSpec{name: fmt.Sprintf("crowd-%d", i), node: n.Name})
		remove = append(remove, "pod/"+specs[i].name)
	}
	t.Cleanup(func() {
		if _, err := suite.Kubectl(contextOfCleanup(), append(remove, "--ignore-not-found")...); err != nil {
			t.Error(err)
		}
	})
	all := append(startManyPods(t, specs), podOnEachNode(t)[2])
	counts, err := restartCounts(t, all)
	must(t, err)
	must(t, n.PowerOff(t.Context()))
	must(t, n.PowerOn(t.Context()))
	start := time.Now()
	waitRestarted(t, all, counts)
	took := time.Since(start)
	eventually(t, 90*time.Second, "exactly the pods' addresses are given away", func() error { return reservedByPods(t, n) })
	for _, p := range podsOn(t, n) {
		onHost(t, suite.Node(1).Machine, "ping", "-c", "1", "-W", "2", p.Status.PodIP)
	}
	return took
}

// startManyPods is startPods for more pods than a minute is enough for.
func startManyPods(t *testing.T, specs []podSpec) []pod {
	t.Helper()
	var pods []pod
	for some := range slices.Chunk(specs, 10) {
		pods = append(pods, startPods(t, some...)...)
	}
	return pods
}

// podObject is what tests read of a Pod.
type podObject struct {
	Metadata struct{ Name string }
	Spec     struct{ HostNetwork bool }
	Status   struct {
		PodIP  string
		PodIPs []struct{ IP string }
	}
}

// podsOn lists the pods of a node that have a network of their own.
func podsOn(t *testing.T, n *cluster.Node) []podObject {
	t.Helper()
	var list struct{ Items []podObject }
	must(t, suite.Get(t.Context(), &list, "pods", "-A", "--field-selector", "spec.nodeName="+n.Name))
	return slices.DeleteFunc(list.Items, func(p podObject) bool { return p.Spec.HostNetwork })
}

// reservedByPods is nil when the addresses that host-local has given away are those of the node's pods.
func reservedByPods(t *testing.T, n *cluster.Node) error {
	t.Helper()
	var want []string
	for _, p := range podsOn(t, n) {
		for _, ip := range p.Status.PodIPs {
			want = append(want, ip.IP)
		}
	}
	got := reservations(t, n)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		return fmt.Errorf("the pods have %d addresses, %d are given away: %v, %v", len(want), len(got), want, got)
	}
	return nil
}

// addAgainWithAnotherRange is P-05: the same name and machine, another Node.
func addAgainWithAnotherRange(t *testing.T) time.Duration {
	n := suite.Node(3)
	before := nodeObjects(t)[2]
	for _, p := range podsOn(t, n) {
		if strings.HasPrefix(p.Metadata.Name, "coredns") {
			_, err := suite.Kubectl(t.Context(), "-n", "kube-system", "delete", "pod", p.Metadata.Name, "--timeout=60s")
			must(t, err)
		}
	}
	_, err := suite.Kubectl(t.Context(), "delete", "pod", "pod-on-"+n.Name, "--ignore-not-found", "--timeout=60s")
	must(t, err)
	_, err = suite.Kubectl(t.Context(), "delete", "node", n.Name)
	must(t, err)
	// Whoever makes the Node chooses its range: the controller gives any that is free, and that may be the old one.
	ranges := freeRanges(before.Spec.PodCIDRs)
	must(t, suite.Apply(t.Context(), fmt.Sprintf(
		"{apiVersion: v1, kind: Node, metadata: {name: %s}, spec: {podCIDR: %q, podCIDRs: %s}}", n.Name, ranges[0], jsonText(t, ranges))))
	start := time.Now()
	onHost(t, n.Machine, "pkill", "-KILL", "-x", "kubelet") // one that starts takes the Node for its own
	eventually(t, 2*time.Minute, n.Name+" is announced and known", func() error {
		for _, o := range nodeObjects(t) {
			if o.Metadata.Annotations[publicIP(first())] == "" {
				return fmt.Errorf("%s is not announced", o.Metadata.Name)
			}
		}
		if diff := differences(t, members(t)); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
	took := time.Since(start)
	eventually(t, time.Minute, "every agent is ready", agentsReady)
	must(t, reachAll(t, podOnEachNode(t))) // with a new pod on the node
	eventually(t, 90*time.Second, "exactly the pods' addresses are given away", func() error { return reservedByPods(t, n) })
	return took
}

// freeRanges are one of two sets of ranges that the controller does not come to by itself, the other one than the given.
func freeRanges(not []string) []string {
	var all []string
	for _, f := range families() {
		free := lane.PodCIDR(f, 77).String()
		if slices.Contains(not, free) {
			free = lane.PodCIDR(f, 78).String()
		}
		all = append(all, free)
	}
	return all
}

func jsonText(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	must(t, err)
	return string(text)
}

// rebootSwapped cuts the power of two nodes and boots them with each other's addresses. Until both have announced theirs,
// each of them has an address that the other's Node still claims.
func rebootSwapped(t *testing.T, a, b *cluster.Node) time.Duration {
	t.Helper()
	must(t, errors.Join(a.PowerOff(t.Context()), b.PowerOff(t.Context())))
	must(t, suite.SwapAddresses(a, b))
	must(t, errors.Join(a.PowerOn(t.Context()), b.PowerOn(t.Context())))
	return untilAnnounced(t)
}

// untilAnnounced waits until every node has announced the address that it has, and returns how long after that the kernels
// agree.
func untilAnnounced(t *testing.T) time.Duration {
	t.Helper()
	eventually(t, 3*time.Minute, "every node has announced its address", func() error {
		for i, o := range nodeObjects(t) {
			for _, f := range families() {
				if got, want := o.Metadata.Annotations[publicIP(f)], suite.Node(i+1).Addrs.In(f); got != want {
					return fmt.Errorf("%s announces %s, and has %s", o.Metadata.Name, got, want)
				}
			}
		}
		return nil
	})
	return agree(t, time.Minute, members(t))
}
