package daemon

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// links lists the devices with their ports.
func (g *ground) links(t *testing.T) []string {
	t.Helper()
	s, err := g.fake.Dump(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(s.String()) {
		if words := strings.Fields(line); words[0] == "link" {
			out = append(out, words[1]+" "+words[slices.Index(words, "dstport")+1])
		}
	}
	return out
}

func TestV10TheOldPortIsHeardUntilTheRulesLetTheNewDeviceHearIt(t *testing.T) {
	before := newGround(t, plainConf)
	before.mustSync(t)
	g := newGround(t, strings.Replace(plainConf, `"vxlan"`, `"vxlan", "Port": 4790`, 1)) // the next process
	g.plane.kernel, g.fake = before.fake, before.fake
	for range 2 {
		g.mustSync(t)
		if d := cmp.Diff([]string{"flannel-old 4789", "flannel.1 4790"}, g.links(t)); d != "" {
			t.Fatalf("before the rules are in force (-want +got):\n%s", d)
		}
		if d := cmp.Diff([]string{"10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink"}, g.routes(t)); d != "" {
			t.Fatalf("routes (-want +got):\n%s", d)
		}
	}
	if got := (&rules{}).config(g.applied.Load()).Mixed; !slices.Equal(got, []uint16{4789}) {
		t.Errorf("the rules hear besides: %v", got)
	}
	if !g.hears(4790) || g.hears(4790) {
		t.Error("news is told once")
	}
	g.mustSync(t)
	if d := cmp.Diff([]string{"flannel.1 4790"}, g.links(t)); d != "" {
		t.Errorf("afterwards (-want +got):\n%s", d)
	}
}

func TestFormerPortsAreThoseOfTheDevicesAndOfTheAnnouncement(t *testing.T) {
	have := kernel.New()
	have.Links["flannel.1"] = kernel.Link{Kind: "vxlan", Port: 4790}
	have.Links["flannel-old"] = kernel.Link{Kind: "vxlan", Port: 8472}
	have.Links["flannel.7"] = kernel.Link{Kind: "bridge", Port: 1}
	if got := formerPorts(4790, subnet.Self{Port: 4789}, have); !slices.Equal(got, []uint16{4789, 8472}) {
		t.Errorf("got %v", got)
	}
	if got := formerPorts(4789, subnet.Self{}, kernel.New()); len(got) > 0 {
		t.Errorf("on a new node: %v", got)
	}
}

func TestPodsPacketsAreKeptInWhileThereIsNoUnderlay(t *testing.T) {
	g := newGround(t, plainConf)
	g.mustSync(t)
	g.fake.EditHost(func(h *kernel.Host) { // the NIC goes, and the device with it
		h.Links = h.Links[:1]
		h.Addrs, h.Routes = nil, nil
	})
	for range 2 {
		if own, _ := g.sync(t.Context(), g.in); own == nil {
			t.Fatal("a round without an underlay succeeds")
		}
		s, err := g.fake.Dump(t.Context())
		if err != nil || s.String() != "route blackhole 10.244.0.0/16 proto 87 metric 4294967295\n" {
			t.Errorf("%v\n%s", err, s)
		}
	}
}
