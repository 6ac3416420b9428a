package kernel_test

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/kernel"
)

// complete reports whether a peer's path is whole, over whichever device.
func complete(s kernel.State, cidr, gateway string) bool {
	r := s.Routes[route(kernel.RouteSet, dev, cidr, gateway).Key]
	m, neighbour := s.Neighs[kernel.Neigh{Link: r.Link, IP: netip.MustParseAddr(gateway)}]
	_, forwarded := s.FDB[kernel.FDBKey{Link: r.Link, MAC: m}]
	return neighbour && forwarded && s.Links[r.Link].Up
}

func onPort(s kernel.State, port uint16) bool {
	for _, l := range s.Links {
		if l.Port == port && l.Up {
			return true
		}
	}
	return false
}

// The agent may be killed after each of the changes: the next one has to go on from there, with every path whole all the time.
func TestV10APortChangesWithoutAGapWhereverTheAgentEnds(t *testing.T) {
	want := edited(node(2, 3), func(s kernel.State) { s.Links[dev] = with(s.Links[dev], func(l *kernel.Link) { l.Port = 4789 }) })
	want.Networks[0] = netip.MustParsePrefix("10.244.0.0/16")
	for crash := 0; ; crash++ {
		fake := kernel.NewFake()
		apply(t, fake, kernel.Diff(kernel.New(), node(2, 3)))
		ops := kernel.Diff(dump(t, fake), want)
		if crash > len(ops) {
			break
		}
		for _, ops := range [][]kernel.Op{ops[:crash], kernel.Diff(after(t, fake, ops[:crash]), want)} {
			for _, op := range ops {
				if err := fake.Apply(t.Context(), op); err != nil {
					t.Fatalf("ended after %d changes: %v", crash, err)
				}
				now := dump(t, fake)
				if !complete(now, "10.244.2.0/24", "10.244.2.0") || !complete(now, "10.244.3.0/24", "10.244.3.0") {
					t.Fatalf("ended after %d changes: after %s a path is broken:\n%s", crash, op, now)
				}
				if !op.Prune && !op.Guard && !onPort(now, 8472) && !onPort(now, 4789) {
					t.Fatalf("ended after %d changes: after %s nobody hears:\n%s", crash, op, now)
				}
			}
		}
		have := dump(t, fake)
		if left := kernel.Diff(have, want); len(left) > 0 {
			t.Errorf("ended after %d changes: left to do: %s", crash, commands(left))
		}
	}
}

// after is the state that a kernel will have after some Ops, by way of another.
func after(t *testing.T, fake *kernel.Fake, ops []kernel.Op) kernel.State {
	t.Helper()
	other := kernel.NewFake()
	state := dump(t, fake)
	other.Edit(func(s *kernel.State) { *s = state })
	apply(t, other, ops)
	return dump(t, other)
}

func TestTheGuardStaysUpUntilTheDeviceIsThere(t *testing.T) {
	fake := kernel.NewFake()
	want := node(2)
	want.Networks[0] = netip.MustParsePrefix("10.244.0.0/16")
	fake.FailApply(2, unix.ENODEV) // the device
	failed := false
	for _, op := range kernel.Diff(kernel.New(), want) {
		if op.Guard && failed {
			continue // as whoever applies has to
		}
		failed = fake.Apply(t.Context(), op) != nil || failed
	}
	have := dump(t, fake)
	if d := have.String(); d != "route blackhole 10.244.0.0/16 proto 87 metric 4294967295\n" {
		t.Fatalf("after a failed round:\n%s", d)
	}
	apply(t, fake, kernel.Diff(have, want))
	if left := kernel.Diff(dump(t, fake), want); len(left) > 0 {
		t.Errorf("left to do: %s", commands(left))
	}
	devices := [2]string{dev, ""}
	if ops := kernel.Guards(kernel.New(), want.Networks, devices); len(ops) != 1 || !ops[0].Guard {
		t.Errorf("without a device: %v", ops)
	}
	for name, s := range map[string]kernel.State{"with the device": node(2), "with the guard": have} {
		if ops := kernel.Guards(s, want.Networks, devices); len(ops) > 0 {
			t.Errorf("%s: %v", name, ops)
		}
	}
}

func TestAPodNetworkThatHoldsTheNodeItselfIsNotGuarded(t *testing.T) {
	want := node(2)
	want.Networks[0] = netip.MustParsePrefix("192.168.0.0/16") // the underlay's address is in it
	for _, op := range kernel.Diff(kernel.New(), want) {
		if op.Guard {
			t.Errorf("the way to everybody is cut off: %s", op)
		}
	}
}
