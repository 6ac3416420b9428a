package policy_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/oracle"
)

// worlds is how many random clusters a property is tried on. WEFT_WORLDS asks for more; `make netpol` does.
func worlds(t *testing.T, usual int) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("WEFT_WORLDS"))
	if err != nil {
		return usual
	}
	return n
}

// seeds lists the seeds of a run, or the one that WEFT_SEED names.
func seeds(t *testing.T, usual int) []uint64 {
	t.Helper()
	if one, err := strconv.ParseUint(os.Getenv("WEFT_SEED"), 10, 64); err == nil {
		return []uint64{one}
	}
	var out []uint64
	for i := range worlds(t, usual) {
		out = append(out, uint64(i))
	}
	return out
}

// nodeRules are the rules of both nodes of a cluster, as text in a fake kernel and as values.
type nodeRules struct {
	tracer tracer
	rules  policy.Ruleset
}

func compileBoth(t *testing.T, c oracle.Cluster) [2]nodeRules {
	t.Helper()
	var out [2]nodeRules
	for n := range out {
		r := policy.Compile(c.View(n), policy.Config{})
		out[n] = nodeRules{tracer: tracer{t: t, table: policy.NewFake(t, r).Table}, rules: r}
	}
	return out
}

func TestTheRulesOfBothNodesTogetherSayWhatTheAPISays(t *testing.T) {
	count := map[bool]int{}
	for _, seed := range seeds(t, 300) {
		c := oracle.Random(seed, 1+int(seed%3))
		nodes := compileBoth(t, c)
		for _, p := range c.Packets {
			want := oracle.Allowed(c.World, p)
			count[want]++
			traced, judged := true, true
			for n := range nodes {
				hook, judge := "forward", nodes[n].rules.Judge
				if p.OwnNode {
					hook, judge = "input", nodes[n].rules.JudgeToNode
				}
				traced = traced && nodes[n].tracer.passes(hook, packet{Packet: p})
				judged = judged && judge(policy.Flow{Src: p.Src, Dst: p.Dst, Proto: p.Proto, DstPort: p.Port}).Allowed
			}
			if traced != want || judged != want {
				t.Fatalf("WEFT_SEED=%d: %v: the API's text says %v, the rules %v, Judge %v\n%s", seed, p, want, traced, judged, describe(c, nodes))
			}
		}
	}
	t.Logf("%d packets allowed, %d denied", count[true], count[false])
	if few := worlds(t, 300) * 5; os.Getenv("WEFT_SEED") == "" && (count[true] < few || count[false] < few) {
		t.Errorf("the worlds say too little: %v", count)
	}
}

// describe prints what is needed to understand a failure.
func describe(c oracle.Cluster, nodes [2]nodeRules) string {
	text := ""
	for _, p := range c.World.Pods {
		text += fmt.Sprintf("node %d pod %+v\n", c.Node[p.UID], *p)
	}
	for _, ns := range c.World.Namespaces {
		text += fmt.Sprintf("%+v\n", *ns)
	}
	for _, p := range c.World.Policies {
		text += fmt.Sprintf("%+v\n", *p)
	}
	for _, p := range c.World.Cluster {
		text += fmt.Sprintf("%+v\n", *p)
	}
	return text + nodes[0].rules.String() + nodes[1].rules.String()
}
