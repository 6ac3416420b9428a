package daemon

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// A Node that is deleted and made anew gets another range, and its agent is started anew, too: only subnet.env remembers.
func TestK08AMoveToAnotherRangeIsSeenBySubnetEnvAndChasedForAWhile(t *testing.T) {
	const one, two, six = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\n",
		"FLANNEL_IPV6_NETWORK=fd00::/48\nFLANNEL_IPV6_SUBNET=fd00:0:0:1::1/64\n"
	for _, c := range []struct {
		before, now string
		want        bool
	}{{"", one, false}, {one, one, false}, {one, two, true}, {one, one + six, false}, {one + six, one, false}, {one + six, six, false}, {one + six, two + six, true}} {
		parse := func(text string) subnet.Env {
			env, err := subnet.ParseEnv([]byte(text + "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"))
			if err != nil && text != "" {
				t.Fatal(err)
			}
			return env
		}
		if got := moved(parse(c.before), parse(c.now)); got != c.want {
			t.Errorf("from %q to %q: moved %v", c.before, c.now, got)
		}
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
