package daemon

import (
	"testing"

	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/nstest"
)

// The cases share one API server, which takes longer to get up than most of them.
func TestAWholeAgentKeepsItsPromisesWhateverHappens(t *testing.T) {
	t.Parallel()
	nstest.NeedRoot(t)
	api := apiserver.Start(t)
	for _, c := range []struct {
		name string
		play func(*testing.T, *apiserver.API)
	}{
		{"killed at any step of its first start it leaves a whole node to the next one", killedInItsFirstStart},
		{"killed at any step of a repair it costs known peers no packet", killedInARepair},
		{"asked to stop at any step it ends well and soon", askedToStop},
		{"D-12 readiness tells the truth within a second both ways", tellsTheTruth},
		{"I-11 a default route that is gone costs no packet and keeps no peer waiting", losesItsDefaultRoute},
		{"S-03 the order of a Node's families changes nothing", ordersFamilies},
		{"S-02 a family is switched on and off while it runs", switchesFamilies},
		{"S-02 a link that flaps keeps both families for new pods", flapsItsLink},
		{"I-13 a bridge around its own pods, and routes of others to them, are named", meetsNetworksOfOthers},
		{"D-04 a boot with a broken kubeconfig brings up what the disk remembers", bootsWithoutItsKubeconfig},
		{"D-04 a new net-conf.json is taken while the API server is away and the disk remembers nothing", changesItsNetConfWithoutAnybody},
		{"K-08 a Node made anew with another range has new pods as soon as the last old one has gone", movesToAnotherRange},
		{"V-06 large packets arrive or the pod hears why not", sendsLargePackets},
	} {
		t.Run(c.name, func(t *testing.T) { c.play(t, api) })
	}
}
