package daemon

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

// switchesFamilies gives a running IPv4 cluster IPv6 by net-conf.json, takes it away again, and then takes IPv4 away for a
// moment: the agent follows without a restart, what is switched off leaves nothing, and IPv4 loses no packet to the first two.
func switchesFamilies(t *testing.T, api *apiserver.API) {
	w := newCrashWorld(t, api)
	w.dual(subnet.IPv4, subnet.IPv4)
	conf := func(l lane.Lane) { w.write(w.cfg.Paths.NetConf, l.NetConf(`{"Type": "vxlan", "Port": 4789}`)) }
	// holds waits until all that the agent writes is of the lane's families and of no other.
	holds := func(l lane.Lane) {
		t.Helper()
		nstest.Eventually(t, crashPatience, func() error {
			if err := w.done(); err != nil {
				return err
			}
			env, err := os.ReadFile(w.cfg.Paths.SubnetFile)
			if err != nil {
				return err
			}
			got := string(env) + w.announced("a") + w.picture()
			for _, f := range subnet.Families() {
				for _, word := range [2][]string{
					{"FLANNEL_SUBNET=10.244.1.1/24", "public-ip=192.168.50.1", "link flannel.1 ", "route 10.244.2.0/24", "route 10.244.3.0/24"},
					{"FLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64", "public-ipv6=fd00:50::1", "backend-v6-data=", "link flannel-v6.1 ", "route fd00:10:244:2::/64"},
				}[f] {
					if strings.Contains(got, word) != l.Has(f) {
						return fmt.Errorf("%s in %s: %v", word, l, !l.Has(f))
					}
				}
			}
			return nil
		})
	}
	conf(lane.IPv4)
	a := w.start(0)
	holds(lane.IPv4)
	first := w.picture()
	from, to := w.meet()
	nstest.Eventually(t, crashPatience, func() error { return from.CanPing(to) })
	pings := from.StartPing(nstest.Ping{Dst: to})
	for range 2 {
		conf(lane.Dual)
		holds(lane.Dual)
		conf(lane.IPv4)
		holds(lane.IPv4)
	}
	if r := pings.Stop(); len(r.Lost) > 0 {
		t.Errorf("pings in IPv4 while IPv6 was switched on and off: %s", r)
	}
	nstest.Eventually(t, crashPatience, func() error {
		if diff := cmp.Diff(first, w.picture()); diff != "" {
			return fmt.Errorf("something is left of IPv6 (-before +after):\n%s", diff)
		}
		return nil
	})
	conf(lane.IPv6)
	holds(lane.IPv6)
	conf(lane.IPv4)
	holds(lane.IPv4)
	w.stop(a)
}
