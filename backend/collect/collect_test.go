package collect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
)

func TestAPassFreesOnlyWhatNobodyLivingHolds(t *testing.T) {
	const hour = time.Hour
	for name, c := range map[string]struct {
		set  func(*node)
		want []string
	}{
		"the pod lives": {func(n *node) {
			n.reserve("10.244.1.2", "a", hour)
			n.result("a", "10.244.1.2", "/run/netns/na", hour)
			n.live("na", "10.244.1.2")
		}, []string{"10.244.1.2 a/eth0"}},
		"its namespace lives, but without the address": {func(n *node) {
			n.reserve("10.244.1.2", "a", hour)
			n.result("a", "10.244.1.2", "/var/run/netns/na", hour)
			n.live("na", "10.99.0.1")
		}, []string{"10.244.1.2 a/eth0"}},
		"its namespace is gone": {func(n *node) {
			n.reserve("10.244.1.2", "a", hour)
			n.result("a", "10.244.1.2", "/run/netns/na", hour)
		}, []string{}},
		"its namespace is gone, a moment after the reservation": {func(n *node) {
			n.reserve("10.244.1.2", "a", time.Minute)
			n.result("a", "10.244.1.2", "/run/netns/na", time.Minute)
		}, []string{"10.244.1.2 a/eth0"}},
		"its namespace is gone, but something has the address": {func(n *node) {
			n.reserve("10.244.1.2", "a", hour)
			n.result("a", "10.244.1.2", "/run/netns/na", hour)
			n.live("", "10.244.1.2")
		}, []string{"10.244.1.2 a/eth0"}},
		"the host has the address": {func(n *node) {
			n.reserve("10.244.1.1", "a", hour)
			n.pods.Host = []netip.Addr{netip.MustParseAddr("10.244.1.1")}
		}, []string{"10.244.1.1 a/eth0"}},
		"its namespace is kept where we cannot look": {func(n *node) {
			n.reserve("10.244.1.2", "a", hour)
			n.result("a", "10.244.1.2", "/proc/77/ns/net", hour)
		}, []string{"10.244.1.2 a/eth0"}},
		"the file of its namespace cannot be seen through": {func(n *node) {
			n.reserve("10.244.1.2", "a", hour)
			n.result("a", "10.244.1.2", "/run/netns/na", hour)
			n.pods.Names, n.pods.Blind = []string{"na"}, []string{"na: no namespace"}
		}, []string{"10.244.1.2 a/eth0"}},
		"the folder of namespaces is not mounted": {func(n *node) {
			n.reserve("10.244.1.2", "a", hour)
			n.result("a", "10.244.1.2", "/run/netns/na", hour)
			n.pods.DirSeen = false
		}, []string{"10.244.1.2 a/eth0"}},
		"the runtime knows nothing of it": {func(n *node) {
			n.reserve("10.244.1.2", "a", hour)
		}, []string{}},
		"the runtime knows nothing of it, and it is young": {func(n *node) {
			n.reserve("10.244.1.2", "a", 5*time.Minute)
		}, []string{"10.244.1.2 a/eth0"}},
		"the runtime knows nothing of it, and not all can be seen": {func(n *node) {
			n.reserve("10.244.1.2", "a", hour)
			n.pods.Blind = []string{"namespace number 3"}
		}, []string{"10.244.1.2 a/eth0"}},
		"the runtime knows nothing of it, and its delegate makes no veth": {func(n *node) {
			n.reserve("10.244.1.2", "a", hour)
			n.write(n.Records+"/a", `{"name":"cbr0","type":"macvlan","ipam":{"type":"host-local"}}`, hour)
		}, []string{"10.244.1.2 a/eth0"}},
		"an empty file": {func(n *node) {
			n.reserve("10.244.1.2", "", hour)
		}, []string{}},
		"an empty file of a living pod": {func(n *node) {
			n.reserve("10.244.1.2", "", hour)
			n.live("na", "10.244.1.2")
		}, []string{"10.244.1.2 /"}},
		"an old file without interface, its pod lives": {func(n *node) {
			n.write(n.Networks+"/cbr0/10.244.1.2", "a", hour)
			n.result("a", "10.244.1.9", "/run/netns/na", hour)
			n.live("na", "10.244.1.9")
			n.reserve("10.244.1.9", "a", hour)
		}, []string{"10.244.1.2 a/", "10.244.1.9 a/eth0"}},
		"of another network": {func(n *node) {
			n.write(n.Networks+"/other/10.244.1.2", "a\r\neth0", hour)
			n.result("a", "10.244.1.2", "/run/netns/na", hour)
		}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			c.set(n)
			n.pass()
			n.pass()
			if d := cmp.Diff(c.want, n.left()); d != "" {
				t.Errorf("reservations (-want +got):\n%s", d)
			}
			if name == "of another network" && len(files(n.Networks+"/other")) != 1 {
				t.Error("another network's reservation was freed")
			}
		})
	}
}

// C-10: a template with another address management, or with a dataDir that is not mounted. A living pod seems to have lost its
// reservation then, and its record, of which the runtime keeps no result, seems to be nobody's.
func TestWhereTheBooksAreSomebodyElsesNothingIsPutBack(t *testing.T) {
	n := newNode(t)
	n.Foreign = true
	n.live("na", "10.244.1.2")
	n.record("a", time.Hour)
	n.reserve("10.244.1.9", "dead", time.Hour)
	r := n.pass()
	if d := cmp.Diff([]string{"10.244.1.9 dead/eth0"}, n.left()); d != "" || len(r.Restored)+len(r.Freed)+len(r.Records) > 0 {
		t.Errorf("%s\nreservations (-want +got):\n%s", r, d)
	}
	if d := cmp.Diff([]string{"a"}, files(n.Records)); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
}

// A node is cut from power with 200 of 254 addresses taken; its DELs never come. Three times.
func TestC08AddressesDoNotLeakOverReboots(t *testing.T) {
	n := newNode(t)
	n.pass()
	for boot := range 3 {
		at := time.Now().Add(-time.Duration(10-boot) * time.Hour)
		for i := range 200 {
			id, addr := fmt.Sprintf("b%dp%d", boot, i), fmt.Sprintf("10.244.1.%d", 2+i)
			n.reserve(addr, id, time.Since(at)+time.Hour)
			n.record(id, time.Since(at)+time.Hour)
			if i%2 == 0 { // of the others not even the runtime knows
				n.result(id, addr, "/run/netns/"+id, time.Since(at)+time.Hour)
			}
		}
		n.boot(fmt.Sprintf("boot-%d", boot), at)
		n.live("new", "10.244.1.200") // came up before the pass, with an address out of the old files
		n.write(n.Networks+"/cbr0/10.244.1.200", "new\r\neth0", 0)
		n.pods.Blind = []string{"something cannot be seen"} // which does not matter for an earlier boot
		if r := n.pass(); len(r.Freed) != 199 || len(r.Results) != 100 {
			t.Fatalf("boot %d: %s", boot, r)
		}
		if d := cmp.Diff([]string{"10.244.1.200 new/eth0"}, n.left()); d != "" {
			t.Fatalf("boot %d (-want +got):\n%s", boot, d)
		}
		if left := files(n.Records); len(left) != 0 {
			t.Fatalf("boot %d: records %q", boot, left)
		}
		n.pods = kernel.Pods{DirSeen: true}
	}
}

func TestAFirstPassDoesNotTakeFilesForThoseOfAnEarlierBoot(t *testing.T) {
	n := newNode(t)
	n.boot("two", time.Now())
	n.reserve("10.244.1.2", "a", time.Hour) // the clock was wrong when the pod came
	n.pods.Blind = []string{"where it lives"}
	n.pass()
	if d := cmp.Diff([]string{"10.244.1.2 a/eth0"}, n.left()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestC10AReservationIsPutBackForALivingPod(t *testing.T) {
	n := newNode(t)
	n.result("a", "10.244.1.2", "/var/run/netns/na", time.Hour)
	n.live("na", "10.244.1.2")
	n.live("", "10.244.1.3")   // nobody knows whose
	n.live("", "192.0.2.7")    // not of our range
	n.record("a", time.Hour)   // stays
	n.record("who", time.Hour) // may be of the pod nobody knows
	r := n.pass()
	if d := cmp.Diff([]string{"10.244.1.2 a/eth0", "10.244.1.3 weft-recovered/eth0"}, n.left()); d != "" || len(r.Restored) != 2 {
		t.Errorf("%s (-want +got):\n%s", r, d)
	}
	if d := cmp.Diff([]string{"a", "who"}, files(n.Records)); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
	n.pods.Spaces = n.pods.Spaces[:1]
	for _, f := range []string{"10.244.1.2", "10.244.1.3"} {
		at := time.Now().Add(-time.Hour)
		n.must(os.Chtimes(n.Networks+"/cbr0/"+f, at, at))
	}
	n.pass()
	if d := cmp.Diff([]string{"10.244.1.2 a/eth0"}, n.left()); d != "" {
		t.Errorf("when the unknown pod is gone (-want +got):\n%s", d)
	}
}

func TestARecoveredReservationGetsItsOwnerOnceThatIsKnown(t *testing.T) {
	n := newNode(t)
	n.live("na", "10.244.1.2")
	n.pass()
	if d := cmp.Diff([]string{"10.244.1.2 weft-recovered/eth0"}, n.left()); d != "" {
		t.Errorf("at first (-want +got):\n%s", d)
	}
	n.result("a", "10.244.1.2", "/run/netns/na", time.Hour)
	n.pass()
	if d := cmp.Diff([]string{"10.244.1.2 a/eth0"}, n.left()); d != "" {
		t.Errorf("then (-want +got):\n%s", d)
	}
}

func TestAReservationIsNotPutBackForAPodThatIsBeingDeleted(t *testing.T) {
	n := newNode(t)
	n.live("na", "10.244.1.2")
	first := true
	n.Kernel = podsFunc{n, func() kernel.Pods {
		if first {
			first = false
			return n.pods
		}
		return kernel.Pods{DirSeen: true} // DEL took the address off meanwhile
	}}
	if r := n.pass(); len(r.Restored) != 0 || len(n.left()) != 0 {
		t.Errorf("%s, left %q", r, n.left())
	}
}

type podsFunc struct {
	*node
	f func() kernel.Pods
}

func (p podsFunc) Pods(string) (kernel.Pods, error) { return p.f(), nil }

func TestK08WhatAnotherClusterLeftIsFreedAtOnce(t *testing.T) {
	n := newNode(t)
	n.pass()
	n.ClusterID = "c2"
	n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.7.0/24")}
	n.reserve("10.244.1.2", "a", time.Minute) // the old range
	n.reserve("10.244.7.2", "b", time.Minute) // the same range
	n.reserve("10.244.7.3", "c", time.Minute)
	n.live("nc", "10.244.7.3")
	n.pruned = []netip.Prefix{netip.MustParsePrefix("10.244.1.1/24")}
	r := n.pass()
	if d := cmp.Diff([]string{"10.244.7.3 c/eth0"}, n.left()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff("10.244.7.1/24", n.asked[0].String()); d != "" || !strings.Contains(r.String(), "took [10.244.1.1/24] off the bridge") {
		t.Errorf("%s, the bridge was asked to keep (-want +got):\n%s", r, d)
	}
	n.ClusterID = "" // not known for a while: no new cluster
	n.reserve("10.244.7.2", "b", time.Minute)
	n.pass()
	n.ClusterID = "c2"
	n.pass()
	if d := cmp.Diff([]string{"10.244.7.2 b/eth0", "10.244.7.3 c/eth0"}, n.left()); d != "" {
		t.Errorf("same cluster (-want +got):\n%s", d)
	}
}

func TestStaleRecordsAndCachedResultsGo(t *testing.T) {
	const hour, day = time.Hour, 24 * time.Hour
	n := newNode(t)
	n.reserve("10.244.1.2", "live", day)
	n.result("live", "10.244.1.2", "/run/netns/nlive", day)
	n.live("nlive", "10.244.1.2")
	n.record("live", day)
	n.record("stale", hour)
	n.record("young", time.Second)
	n.write(n.Records+"/broken", "", hour)
	n.write(n.Records+"/foreign", `{"name":"net2","type":"bridge","ipam":{"type":"host-local"}}`, day)
	n.write(n.Records+"/dhcp", `{"name":"cbr0","type":"bridge","ipam":{"type":"dhcp"}}`, day)
	n.result("gone", "10.244.1.9", "/run/netns/ngone", day)
	n.result("justgone", "10.244.1.10", "/run/netns/njust", time.Minute)
	n.result("elsewhere", "10.244.1.11", "/proc/1/ns/net", day)
	n.write(n.Results+"/cbr0-x-eth0", "", day)
	r := n.pass()
	if d := cmp.Diff([]string{"dhcp", "foreign", "live", "young"}, files(n.Records)); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"cbr0-elsewhere-eth0", "cbr0-justgone-eth0", "cbr0-live-eth0", "cbr0-x-eth0"}, files(n.Results)); d != "" {
		t.Errorf("%s: results (-want +got):\n%s", r, d)
	}
	n.boot("two", time.Now().Add(-2*time.Second))
	n.pods = kernel.Pods{DirSeen: true}
	n.pass()
	if got := append(files(n.Results), n.left()...); len(got) != 0 {
		t.Errorf("after a boot: %q", got)
	}
}

func TestTwoPodsWithOneAddressAreReported(t *testing.T) {
	n := newNode(t)
	n.reserve("10.244.1.2", "a", time.Hour)
	n.live("na", "10.244.1.2")
	n.live("nb", "10.244.1.2")
	r := n.pass()
	want := []string{"two namespaces have the address 10.244.1.2, /run/netns/na and /run/netns/nb: delete one of the two pods, which gets another one then " +
		"(crictl inspectp shows a pod's namespace)"}
	if !slices.Equal(r.Problems, want) || r.String() != "" || r.Kept != 1 {
		t.Errorf("%q, %+v", r.Problems, r)
	}
	n.pods.Spaces[1].Files = nil
	if r := n.pass(); len(r.Problems) != 1 || !strings.Contains(r.Problems[0], "/run/netns/na and number 2 (ip netns list-id)") {
		t.Errorf("only a veth leads to the second: %q", r.Problems)
	}
}

func TestAnAttachmentInHandIsLeftAlone(t *testing.T) {
	n := newNode(t)
	n.reserve("10.244.1.2", "a", time.Hour)
	n.record("a", time.Hour)
	lock, err := n.records().LockOne(context.Background(), ownerA())
	n.must(err)
	n.pass()
	if len(n.left()) != 1 || len(files(n.Records)) != 1 {
		t.Errorf("left %q, records %q", n.left(), files(n.Records))
	}
	lock.Close()
	n.pass()
	if len(n.left())+len(files(n.Records)) != 0 {
		t.Errorf("afterwards: %q, %q", n.left(), files(n.Records))
	}
}

func TestAnEmptyNodeIsFine(t *testing.T) {
	n := newNode(t)
	if r := n.pass(); r.String() != "" {
		t.Error(r)
	}
	if _, err := os.Stat(n.Networks); !errors.Is(err, os.ErrNotExist) {
		t.Error("a pass with nothing to do made host-local's folder")
	}
}

func TestAPassThatCannotLookSaysSo(t *testing.T) {
	n := newNode(t)
	broken := errors.New("no netlink")
	for name, c := range map[string]struct {
		set  func(*Options)
		want string
	}{
		"no kernel":            {func(o *Options) { o.Kernel = nil }, "no kernel"},
		"blind":                {func(o *Options) { o.Kernel = failing{n, broken} }, "see living pods: no netlink"},
		"no proc":              {func(o *Options) { o.Proc = "/nonexistent" }, "boot's number"},
		"records is no folder": {func(o *Options) { o.Records = n.Proc + "/stat" }, "list"},
		"results is no folder": {func(o *Options) { o.Results = n.Proc + "/stat" }, "list"},
	} {
		o := n.Options
		c.set(&o)
		if _, err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want ... %q", name, err, c.want)
		}
	}
	for _, stat := range []string{"cpu 1\n", "btime soon\n"} {
		n.write(n.Proc+"/stat", stat, 0)
		if _, err := Run(context.Background(), n.Options); err == nil {
			t.Errorf("%q: no error", stat)
		}
	}
}

type failing struct {
	*node
	err error
}

func (f failing) Pods(string) (kernel.Pods, error) { return kernel.Pods{}, f.err }

func TestAStateFileThatIsBrokenCountsAsNone(t *testing.T) {
	n := newNode(t)
	n.write(n.State, `{"bootID":"zero"`, 0)
	n.boot("two", time.Now())
	n.reserve("10.244.1.2", "a", 2*time.Minute)
	n.pass()
	if len(n.left()) != 1 {
		t.Error("a first pass took a file for one of an earlier boot")
	}
}

func TestC08AFolderInThePlaceOfTheStateIsNamedAndKeepsNoAddress(t *testing.T) {
	n := newNode(t)
	n.write(n.State+"/here", "", 0)
	n.reserve("10.244.1.2", "a", time.Hour)
	_, err := Run(context.Background(), n.Options)
	if want := "remember this pass: write " + n.State + ": "; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "rm -r "+n.State) {
		t.Errorf("got %v, want ... %q and the cure", err, want)
	}
	if len(n.left()) != 0 {
		t.Errorf("left %v", n.left())
	}
}

func TestC10AReservationThatCannotBePutBackKeepsNothingElse(t *testing.T) {
	n := newNode(t)
	n.write(n.Networks+"/cbr0/.reserve.tmp/here", "", 0)
	n.live("nb", "10.244.1.9")
	n.reserve("10.244.1.2", "a", time.Hour)
	n.result("a", "10.244.1.2", "/run/netns/na", 2*time.Hour)
	r, err := Run(context.Background(), n.Options)
	if err == nil || !strings.Contains(err.Error(), "reserve 10.244.1.9: ") {
		t.Errorf("got %v, want it to name the address", err)
	}
	if len(r.Freed) != 1 || len(r.Results) != 1 || len(n.left()) != 0 || len(n.asked) == 0 {
		t.Errorf("%+v, left %v", r, n.left())
	}
}

func TestC08AReservationThatCannotBeRemovedKeepsNoOther(t *testing.T) {
	n := newNode(t)
	for _, addr := range []string{"10.244.1.2", "10.244.1.3", "10.244.1.4"} {
		n.reserve(addr, "id"+addr[9:], time.Hour)
	}
	n.immutable(n.Networks + "/cbr0/10.244.1.3")
	r, err := Run(context.Background(), n.Options)
	if err == nil || !strings.Contains(err.Error(), "free 10.244.1.3: ") || !strings.Contains(err.Error(), "chattr -i "+n.Networks+"/cbr0/10.244.1.3") {
		t.Errorf("got %v, want it to name the address and the cure", err)
	}
	if len(r.Freed) != 2 || len(n.left()) != 1 {
		t.Errorf("freed %v, left %v, want 10.244.1.3 alone to stand", r.Freed, n.left())
	}
}
