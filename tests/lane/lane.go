// Package lane says in which families a run of the tests works: IPv4, both, or IPv6 alone. The lane is a parameter of the
// whole run, WEFT_LANE, so that one test serves all three.
package lane

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/weft-cni/weft/subnet"
)

// Env is the environment variable that chooses the lane.
const Env = "WEFT_LANE"

// Lane is the families of a cluster.
type Lane string

// The lanes. IPv4 is what a run without WEFT_LANE gets.
const (
	IPv4 Lane = "ipv4"
	Dual Lane = "dual"
	IPv6 Lane = "ipv6"
)

// Lanes lists all three.
func Lanes() []Lane { return []Lane{IPv4, Dual, IPv6} }

// Parse reads a lane's name; an empty one is IPv4.
func Parse(name string) (Lane, error) {
	switch l := Lane(name); l {
	case "":
		return IPv4, nil
	case IPv4, Dual, IPv6:
		return l, nil
	}
	return "", fmt.Errorf("%s=%q names no lane: use %s, %s or %s", Env, name, IPv4, Dual, IPv6)
}

// Of is the lane of this run. A name that is none ends the test.
func Of(t testing.TB) Lane {
	t.Helper()
	l, err := Parse(os.Getenv(Env))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Has reports whether the lane's clusters have a family.
func (l Lane) Has(f subnet.Family) bool {
	return l == Dual || l == [2]Lane{IPv4, IPv6}[f]
}

// Families lists the lane's families, the one that comes first in a Node's podCIDRs first.
func (l Lane) Families() []subnet.Family {
	var out []subnet.Family
	for _, f := range subnet.Families() {
		if l.Has(f) {
			out = append(out, f)
		}
	}
	return out
}

// First is the family of a test that needs one only: the lane's first.
func (l Lane) First() subnet.Family { return l.Families()[0] }

// Network is the pod network of a family in the tests' clusters.
func Network(f subnet.Family) netip.Prefix {
	return [2]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}[f]
}

// PodCIDR is the pod range of node number n, from 0 to 255, in a family: 10.244.n.0/24, or fd00:10:244:n::/64 with n in hex.
func PodCIDR(f subnet.Family, n int) netip.Prefix {
	base := Network(f).Addr().AsSlice()
	base[[2]int{2, 7}[f]] = byte(n)
	addr, _ := netip.AddrFromSlice(base)
	return netip.PrefixFrom(addr, [2]int{24, 64}[f])
}

// NetConf is net-conf.json of the lane, with a Backend object as it is given.
func (l Lane) NetConf(backend string) string {
	text := fmt.Sprintf(`{"EnableIPv4": %v, "EnableIPv6": %v`, l.Has(subnet.IPv4), l.Has(subnet.IPv6))
	for _, f := range l.Families() {
		text += fmt.Sprintf(`, %q: %q`, [2]string{"Network", "IPv6Network"}[f], Network(f))
	}
	return text + `, "Backend": ` + backend + `}`
}
