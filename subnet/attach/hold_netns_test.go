package attach_test

import (
	"net/netip"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet/attach"
	"github.com/weft-cni/weft/tests/nstest"
)

const gateTable = `table inet weft-gate {
	set held-ipv4 { type ipv4_addr; }
	set held-ipv6 { type ipv6_addr; }
	set free-ipv4 { type ipv4_addr; }
	set free-ipv6 { type ipv6_addr; }
}`

// inside makes calls in a namespace.
func inside(t testing.TB, ns *nstest.NS, calls ...func() error) {
	t.Helper()
	for _, call := range calls {
		if err := ns.Do(call); err != nil {
			t.Fatal(err)
		}
	}
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, a := range texts {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// sets lists what is in each set, as "held-ipv4: 10.244.1.2".
func sets(ns *nstest.NS) (out []string) {
	for _, set := range []string{"held-ipv4", "held-ipv6", "free-ipv4", "free-ipv6"} {
		text := ns.Run("nft", "list", "set", "inet", "weft-gate", set)
		for _, a := range regexp.MustCompile(`[0-9a-f:]+[.:][0-9a-f.:]+`).FindAllString(text, -1) {
			out = append(out, set+": "+a)
		}
	}
	slices.Sort(out)
	return out
}

func hold(t *testing.T, want bool, texts ...string) func() error {
	return func() error {
		if got, err := attach.Hold(addrs(texts...)); got != want || err != nil {
			t.Errorf("hold %v: %t, %v; want %t", texts, got, err, want)
		}
		return nil
	}
}

func stands(t *testing.T, want bool) func() error {
	return func() error {
		if got, err := attach.Stands(); got != want || err != nil {
			t.Errorf("stands: %t, %v; want %t", got, err, want)
		}
		return nil
	}
}

func free(texts ...string) func() error { return func() error { return attach.Free(addrs(texts...)) } }

func release(texts ...string) func() error {
	return func() error { return attach.Release(addrs(texts...)) }
}

func TestWithoutTheTableNothingIsHeld(t *testing.T) {
	ns := nstest.New(t)
	inside(t, ns, stands(t, false), hold(t, false, "10.244.1.2", "fd00::2"), free("10.244.1.2"), release("10.244.1.2", "fd00::2"))
	ns.SetNFT("table inet weft-gate { }") // half of it, as somebody else may leave it
	inside(t, ns, stands(t, true), hold(t, false, "10.244.1.2", "fd00::2"), free("10.244.1.2"))
}

func TestAddressesAreHeldFreedAndReleased(t *testing.T) {
	ns := nstest.New(t)
	ns.SetNFT(gateTable)
	for _, step := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"held", hold(t, true, "10.244.1.2", "fd00::2", "10.244.1.3"), []string{"held-ipv4: 10.244.1.2", "held-ipv4: 10.244.1.3", "held-ipv6: fd00::2"}},
		{"one that is not free stays", release("10.244.1.3"), []string{"held-ipv4: 10.244.1.2", "held-ipv4: 10.244.1.3", "held-ipv6: fd00::2"}},
		{"freed", free("10.244.1.2", "fd00::2"), []string{"free-ipv4: 10.244.1.2", "free-ipv6: fd00::2", "held-ipv4: 10.244.1.2", "held-ipv4: 10.244.1.3", "held-ipv6: fd00::2"}},
		{"freed again", free("10.244.1.2", "fd00::2"), []string{"free-ipv4: 10.244.1.2", "free-ipv6: fd00::2", "held-ipv4: 10.244.1.2", "held-ipv4: 10.244.1.3", "held-ipv6: fd00::2"}},
		{"one is held anew before its release", hold(t, true, "10.244.1.2"), []string{"free-ipv6: fd00::2", "held-ipv4: 10.244.1.2", "held-ipv4: 10.244.1.3", "held-ipv6: fd00::2"}},
		{"released", release("10.244.1.2", "fd00::2", "10.244.1.9"), []string{"held-ipv4: 10.244.1.2", "held-ipv4: 10.244.1.3"}},
		{"one of two is held already", hold(t, true, "10.244.1.3", "10.244.1.4"), []string{"held-ipv4: 10.244.1.2", "held-ipv4: 10.244.1.3", "held-ipv4: 10.244.1.4"}},
	} {
		inside(t, ns, step.do)
		if d := cmp.Diff(step.want, sets(ns)); d != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, d)
		}
	}
	inside(t, ns, stands(t, true))
}

func BenchmarkHold(b *testing.B) {
	ns := nstest.New(b)
	ns.SetNFT(gateTable)
	two := addrs("10.244.1.2", "fd00:244:1::2")
	var fast time.Duration
	inside(b, ns, func() error {
		for b.Loop() {
			began := time.Now()
			if _, err := attach.Stands(); err != nil {
				return err
			}
			if _, err := attach.Hold(two); err != nil {
				return err
			}
			if err := attach.Free(two); err != nil {
				return err
			}
			fast += time.Since(began)
			if err := attach.Release(two); err != nil {
				return err
			}
		}
		return nil
	})
	b.ReportMetric(float64(fast.Microseconds())/float64(b.N), "µs/held-and-freed")
}
