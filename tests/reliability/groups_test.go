package reliability

import (
	"testing"

	"github.com/weft-cni/weft/tests/lane"
)

// TestTheShortFormHasRoomForTwelveRows keeps `make test` short: who adds one takes another out.
func TestTheShortFormHasRoomForTwelveRows(t *testing.T) {
	const room = 12
	worst := map[lane.Lane][]string{}
	names := map[string]bool{}
	for _, g := range groups() {
		for _, f := range g.Faults {
			for _, l := range lane.Lanes() {
				if f.Worst && g.in(l) && len(f.struck(l)) > 0 {
					worst[l] = append(worst[l], g.Name+"/"+f.Name)
				}
			}
			if names[g.Name+"/"+f.Name] {
				t.Errorf("there are two faults %s/%s", g.Name, f.Name)
			}
			names[g.Name+"/"+f.Name] = true
			if f.Do == nil {
				t.Errorf("fault %s/%s does nothing", g.Name, f.Name)
			}
			if f.Worst && f.Long {
				t.Errorf("fault %s/%s takes too long for the short form", g.Name, f.Name)
			}
		}
	}
	for l, list := range worst {
		if len(list) > room {
			t.Errorf("%d worst faults in the lane %s: %q; at most %d", len(list), l, list, room)
		}
	}
}
