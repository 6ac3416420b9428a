package vxlan_test

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/vxlan"
	"github.com/weft-cni/weft/subnet"
)

// round is one turn of a daemon's loop on a fake kernel; it returns what was done and the first error.
func round(t *testing.T, f *kernel.Fake, cfg vxlan.Config, peers ...subnet.Peer) ([]kernel.Op, error) {
	t.Helper()
	want, err := vxlan.Plan(cfg, snapshot(peers...))
	if err != nil {
		t.Fatal(err)
	}
	have, err := f.Dump(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var first error
	for _, op := range kernel.Diff(have, want) {
		if op.Guard {
			continue // it has tests of its own, and is neither counted nor waited for
		}
		if err := f.Apply(t.Context(), op); err != nil && first == nil {
			first = err
		}
	}
	return f.Ops(), first
}

func TestP08WhicheverCallFailsTheNextRoundCompletesThePlan(t *testing.T) {
	cfg, peers := config(), []subnet.Peer{peer(2), peer(3)}
	all, err := round(t, kernel.NewFake(), cfg, peers...)
	if err != nil {
		t.Fatal(err)
	}
	for n := range all {
		for _, errno := range []error{unix.EBUSY, unix.ENOBUFS, unix.EINVAL} {
			f := kernel.NewFake()
			f.FailApply(n+1, errno)
			first, err := round(t, f, cfg, peers...)
			if err == nil || len(first) >= len(all) {
				t.Errorf("call %d fails with %v: %d done, %v", n, errno, len(first), err)
			}
			second, err := round(t, f, cfg, peers...)
			if err != nil || len(first)+len(second) != len(all) {
				t.Errorf("call %d (%s) fails with %v: then %d done of %d, %v", n, all[n], errno, len(second), len(all), err)
			}
			if third, err := round(t, f, cfg, peers...); err != nil || len(third) > 0 {
				t.Errorf("call %d fails with %v: not idle after all: %v, %v", n, errno, third, err)
			}
		}
	}
}

func TestP10WhenTheWinnerOfARangeLeavesTheOtherTakesOverAndNothingFlaps(t *testing.T) {
	// package subnet/kube lets the older of two Nodes have the range; the loser is in the next snapshot without it
	loser := changed(peer(3), 0, func(e *subnet.Endpoint) { e.PodCIDR = peer(2).Endpoints[0].PodCIDR })
	f, cfg := kernel.NewFake(), v4(config())
	if _, err := round(t, f, cfg, peer(2)); err != nil {
		t.Fatal(err)
	}
	ops, err := round(t, f, cfg, loser)
	got := fmt.Sprint(ops)
	if err != nil || len(ops) != 3 || strings.Contains(got, "route") {
		t.Errorf("the route stays, what is behind it changes: %v, %v", got, err)
	}
	if ops, err := round(t, f, cfg, loser); err != nil || len(ops) > 0 {
		t.Errorf("flaps: %v, %v", ops, err)
	}
}

func TestP13AndP15DeletionsThatWereMissedOrComeTwiceAreOneDifference(t *testing.T) {
	f, cfg := kernel.NewFake(), v4(config())
	if _, err := round(t, f, cfg, peer(2), peer(3)); err != nil {
		t.Fatal(err)
	}
	// the API was away: n2 was removed and n4 added meanwhile; an administrator was faster than us with half of it
	if err := f.Meddle(kernel.Op{Kind: kernel.NeighDel, Neigh: kernel.Neigh{Link: "flannel.1", IP: peer(2).Endpoints[0].PodCIDR.Addr()}}); err != nil {
		t.Fatal(err)
	}
	ops, err := round(t, f, cfg, peer(3), peer(4))
	if err != nil || len(ops) != 3+2 {
		t.Errorf("%v, %v", ops, err)
	}
	if ops, err := round(t, f, cfg, peer(3), peer(4)); err != nil || len(ops) > 0 {
		t.Errorf("%v, %v", ops, err)
	}
	for _, op := range ops { // again, late
		if err := f.Meddle(op); err != nil {
			t.Error(err)
		}
	}
}

func TestV10WhileAPortIsChangedNodeByNodeEachIsSentToWhereItListens(t *testing.T) {
	moved := peer(3)
	moved.Port = 4790
	f, cfg := kernel.NewFake(), v4(config())
	if _, err := round(t, f, cfg, peer(2), moved); err != nil {
		t.Fatal(err)
	}
	cfg.Port = 4790 // our turn
	ops, err := round(t, f, cfg, peer(2), moved)
	got := fmt.Sprint(ops)
	if err != nil || !strings.Contains(got, "dstport 4790") || !strings.Contains(got, "dst 192.168.50.2 port 4789") || strings.Contains(got, "port 4790 self") {
		t.Errorf("%v, %v", got, err)
	}
}

func TestS02APeerWithoutAFamilyIsReachedInTheOther(t *testing.T) {
	f := kernel.NewFake()
	half := changed(peer(2), subnet.IPv6, func(e *subnet.Endpoint) { *e = subnet.Endpoint{} })
	if _, err := round(t, f, config(), half); err != nil {
		t.Fatal(err)
	}
	ops, err := round(t, f, config(), peer(2)) // it gains IPv6 later
	if err != nil || len(ops) != 3 || !strings.Contains(fmt.Sprint(ops), "fd00:10:244:2::/64") {
		t.Errorf("%v, %v", ops, err)
	}
}
