package mesh_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/subnet"
)

// A PSK that was changed on one node, or a firewall on the way, leaves all in place and lets nothing through: WireGuard tells
// nobody. What shows it are handshakes that are begun again and again.
func TestAPeerThatDoesNotAnswerWireGuardIsToldOfAndAnIdleOneIsNot(t *testing.T) {
	const try = 148
	in := input(only(subnet.IPv4, config(1, subnet.WireGuard)), peer(2, subnet.WireGuard))
	key := kernel.WGKey{Link: "flannel-wg", Key: peer(2, "").Key}
	var before mesh.Result
	for _, story := range []struct {
		name string
		step time.Duration // between rounds
		// shook is when the last handshake was, in seconds since the first round, or 0 for never.
		rounds []round
	}{
		{"a newcomer that is not answered", 5 * time.Second, []round{{0, 0, ""}, {0, try, ""}, {0, 2 * try, ""}, {0, 3 * try, "no"}, {0, 19 * try, "no"}}},
		{"an agent that starts meanwhile", 0, []round{{0, 19 * try, "no"}}},
		{"a newcomer that nobody has talked to", time.Minute, []round{{0, 0, ""}, {0, 0, ""}}},
		{"a peer at work", 5 * time.Second, []round{{-2, 9000, ""}, {-2, 99000, ""}, {9, 990000, ""}}},
		{"a peer with nothing to say any more", time.Minute, []round{{-170, 9000, ""}, {-170, 9000, ""}, {-170, 9000, ""}, {-170, 9000, ""}}},
		{"a peer that is asked once more", 2 * time.Minute, []round{{-300, 9000, ""}, {-300, 9000 + try, ""}, {9, 99000, ""}}},
		{"a PSK that was changed", time.Minute, []round{{-178, 9000, ""}, {-178, 10000, ""}, {-178, 10000 + 9*try, ""}, {-178, 10000 + 18*try, ""}, {-178, 10000 + 27*try, "no"}, {299, 11000, ""}}},
		{"a clock that jumps by a day while a session is at work", 30 * time.Second, []round{{-9, 1000, ""}, {-86400, 100000, ""}, {-86400, 200000, ""}, {-86400, 300000, ""}, {90, 400000, ""}}},
		{"a peer that was made anew", 5 * time.Second, []round{{-300, 9000, ""}, {0, 0, ""}, {0, 2 * try, ""}, {0, 3 * try, "no"}}},
		{"an agent that starts beside an idle peer", 3 * time.Minute, []round{{-3000, 9000000, ""}, {-3000, 9000000, ""}}},
	} {
		in.Last, in.Now = nil, noon()
		for i, r := range story.rounds {
			in.Have = kernel.New()
			in.Have.Sent[key] = r.sent
			if r.shook != 0 {
				in.Have.Handshakes[key] = noon().Add(time.Duration(r.shook) * time.Second)
			}
			got := plan(t, in)
			if told := strings.Contains(reasons(got), "NoSession"); told != (r.told != "") {
				t.Errorf("%s, round %d: %v", story.name, i, got.Problems)
			}
			for _, p := range got.Problems {
				if !strings.Contains(p.Text, "192.168.50.2:51820") || !strings.Contains(p.Text, "PSK") {
					t.Errorf("%s: %s", story.name, p.Text)
				}
			}
			if len(got.Problems) > 0 && i > 0 && story.rounds[i-1].told != "" && got.Problems[0] != before.Problems[0] {
				t.Errorf("%s: said in other words at each round: %v, %v", story.name, before.Problems, got.Problems)
			}
			before = got
			in.Last, in.Now = got.Ways, in.Now.Add(story.step)
		}
	}
}

type round struct {
	shook int
	sent  uint64
	told  string
}
