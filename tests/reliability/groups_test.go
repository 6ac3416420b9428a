package reliability

import (
	"testing"
)

// TestTheShortFormHasRoomForTenRows keeps `make test` short: who adds one takes another out.
func TestTheShortFormHasRoomForTenRows(t *testing.T) {
	var worst []string
	names := map[string]bool{}
	for _, g := range groups() {
		for _, f := range g.Faults {
			if f.Worst {
				worst = append(worst, g.Name+"/"+f.Name)
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
	if len(worst) > 10 {
		t.Errorf("%d worst faults: %q; at most 10", len(worst), worst)
	}
}
