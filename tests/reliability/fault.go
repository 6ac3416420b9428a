// Package reliability is the fault bench: nodes made of network namespaces, with real flanneld processes, a real API
// server and pods, constant traffic between them, and faults that are made while every packet is counted. The result
// is docs/reliability.md, one line a fault.
//
// A fault is a row of a table (Fault). Each group has its rows in a file of its own, NAME_netns_test.go, as a function
// that returns them, and one line in groups_netns_test.go. That is all: the bench starts traffic, calls Do as often as
// it has to, waits after each until all is as it was, and judges losses, wrong source addresses, heal times and the
// agents' logs, CPU time and memory.
//
//	func kernelRows() []Fault {
//		return []Fault{{
//			Name:  "flannel.1 deleted",
//			Loses: "the device is gone until it is made again",
//			Do:    func(b *Bench) error { return b.Hurt(b.Nodes[0], "ip link del {device}") },
//		}}
//	}
//
// The families of the nodes, the pods and the traffic are those of the lane (WEFT_LANE, package lane). A row says what it
// breaks, and Hurt does so in each family of the lane: {device} is flannel.1, and flannel-v6.1. A row that strikes one family
// alone (Fault.Families) may cost the other nothing.
//
// To play one row, or all:
//
//	WEFT_RELIABILITY=once go test ./tests/reliability -run 'TestFaults/kernel/flannel.1_deleted' -v # once
//	WEFT_RELIABILITY=long go test ./tests/reliability -run TestFaults/kernel -timeout 1h            # ten times, and write the page
//
// Inside Do, use what returns errors: Node.NS.Try and Bench.Hurt, and not Node.NS.IP or Run, which end the whole group.
package reliability

import (
	"slices"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
)

// Fault is one thing that goes wrong: one line of the page.
type Fault struct {
	Name string
	Note string // for the page: how it is done, or what the agent does about it
	// Worst puts it into the short form, which every `make test` plays once. There is room for twelve in each lane.
	Worst bool
	// Long says that it takes 10 s or more: it is played once in the long form, and ten times by `make soak`.
	Long bool
	// Times is how often the long form plays it when ten times are not enough.
	Times int

	// Loses says why packets may be lost; empty: not one may be. It is shown.
	Loses string
	// Most bounds what may be lost in one run; 0 means that Loses bounds it well enough.
	Most int
	// Leaks says why connections may leave with a wrong source address; empty: not one may. It is shown.
	Leaks string
	// Heal bounds the time from the damage until all is as it was; 0 means a second. The figure is asserted in the long
	// form; in the short form, on a machine that others use, ten times as much.
	Heal time.Duration
	// Rules says that the damage is done to our nft table.
	Rules bool
	// Lines is how many log lines of one kind a run may bring beyond ten for each start of an agent and one a second.
	Lines int
	// Families are those that it strikes; empty: those of the lane. In the others not one packet may be lost.
	Families []subnet.Family
	// Kernel names a kind of device that the kernel has to have; without it the row is skipped, and `make test-vm` has it.
	Kernel string
	// Alone gives the row a bench of its own, for what cannot be undone.
	Alone bool

	// Before is done once, before the traffic starts. May be nil.
	Before func(b *Bench) error
	// Do makes the damage, once. The heal time counts from the last Bench.Hurt in it, or from Bench.Damaged, or, with
	// neither, from its end.
	Do func(b *Bench) error
	// Healed reports what is not yet right. Nil means Bench.Restored: every agent is ready, and on every node all that is
	// ours is exactly as it was before Do.
	Healed func(b *Bench) error
	// After takes back what Do did and no agent can, once it has healed; then the bench waits for Restored. May be nil.
	After func(b *Bench) error
}

// Group is one kind of fault.
type Group struct {
	Name   string
	Faults []Fault
	// Nodes is how many nodes its bench has; 0 means 3.
	Nodes int
	// Backend is the object of that name in net-conf.json of its bench; empty means VXLAN.
	Backend string
	// Lanes are those in which it is played; empty: all.
	Lanes []lane.Lane
}

// in reports whether the group is played in a lane.
func (g Group) in(l lane.Lane) bool { return len(g.Lanes) == 0 || slices.Contains(g.Lanes, l) }
