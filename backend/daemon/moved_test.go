package daemon

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestK08AMoveToAnotherRangeIsNoticedOnceAndChasedForAWhile(t *testing.T) {
	var m moved
	one, two := [2]netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}, [2]netip.Prefix{netip.MustParsePrefix("10.244.7.0/24")}
	var got []bool
	for _, ranges := range [][2]netip.Prefix{one, one, two, two, one} {
		got = append(got, m.to(ranges))
	}
	if diff := cmp.Diff([]bool{false, false, true, false, true}, got); diff != "" {
		t.Errorf("moves (-want +got):\n%s", diff)
	}
	synctest.Test(t, func(t *testing.T) {
		began, pokes := time.Now(), 0
		chase(t.Context(), func() { pokes++ })
		if took := time.Since(began); took != movedLong || pokes < int(movedLong/movedPeriod) {
			t.Errorf("%d pokes in %v", pokes, took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began = time.Now()
		chase(ctx, func() {})
		if took := time.Since(began); took != 0 {
			t.Errorf("ended %v after its context", took)
		}
	})
}
