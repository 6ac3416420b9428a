package mesh_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/subnet"
)

func plan(t *testing.T, in mesh.Input) mesh.Result {
	t.Helper()
	r, err := mesh.Plan(in)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEveryBackendIsOnePlan(t *testing.T) {
	direct := config(1, subnet.VXLAN)
	direct.DirectRouting = true
	for _, test := range []struct {
		name string
		c    mesh.Config
		want string
	}{
		{"host-gw", config(1, subnet.HostGW), `
route 10.244.2.0/24 via 192.168.50.2 dev eth0 proto 87
route fd00:10:244:2::/64 via fd00:50::2 dev eth0 proto 87 metric 1024
`},
	} {
		p := peer(2, test.c.Kind)
		got := plan(t, input(test.c, p)).Want.String()
		if d := cmp.Diff(strings.TrimPrefix(test.want, "\n"), got); d != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, d)
		}
	}
}
