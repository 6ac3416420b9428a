package lane_test

import (
	"testing"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
)

func TestEveryLanesNetConfIsAcceptedAndHoldsItsRanges(t *testing.T) {
	for _, l := range lane.Lanes() {
		conf, _, err := subnet.ParseNetConf([]byte(l.NetConf(`{"Type": "vxlan"}`)))
		if err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		for _, f := range subnet.Families() {
			if conf.Enabled[f] != l.Has(f) {
				t.Errorf("%s: %v is %v", l, f, conf.Enabled[f])
			}
			if l.Has(f) && !subnet.Contains(conf.Networks[f], lane.PodCIDR(f, 255)) {
				t.Errorf("%s: %s holds no %s", l, conf.Networks[f], lane.PodCIDR(f, 255))
			}
		}
	}
	if got := lane.PodCIDR(subnet.IPv6, 17).String(); got != "fd00:10:244:11::/64" {
		t.Errorf("node 17 has %s", got)
	}
}

func TestParseRefusesAWordThatIsNoLane(t *testing.T) {
	if _, err := lane.Parse("ipv5"); err == nil {
		t.Error("ipv5 is taken for a lane")
	}
}
