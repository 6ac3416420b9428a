package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/weft-cni/weft/tests/lane"
)

// clusterDir is the folder of the real cluster's tests, a module of its own.
func clusterDir() string { return filepath.Join("tests", "e2e") }

// onCluster runs the tests on a real cluster that the environment describes.
func onCluster(env ...string) func(context.Context, io.Writer) tally {
	return func(ctx context.Context, out io.Writer) tally {
		_, _ = fmt.Fprintln(out, "on a cluster with", env)
		return goTestIn(ctx, out, place{dir: clusterDir(), env: env}, "-count=1", "-timeout", "60m", ".")
	}
}

// shortOnCluster is the part of onCluster that every run plays in the lanes beside IPv4.
func shortOnCluster(l lane.Lane) func(context.Context, io.Writer) tally {
	return onCluster(laneEnv(l), "WEFT_E2E_FORM=short")
}

func laneEnv(l lane.Lane) string { return lane.Env + "=" + string(l) }

// lanes runs what `make test` has no time for: everything in both families and in IPv6 alone, the backends without a tunnel on
// an underlay of two networks, and Kubernetes' own specs in all three lanes.
func lanes(ctx context.Context, out io.Writer) tally {
	var t tally
	for _, l := range []lane.Lane{lane.Dual, lane.IPv6} {
		t.add(netnsIn(ctx, out, laneEnv(l)))
		t.add(onCluster(laneEnv(l))(ctx, out))
	}
	for _, env := range underlays() {
		t.add(onCluster(env...)(ctx, out))
	}
	for _, l := range lane.Lanes() {
		t.add(upstream(ctx, out, l))
	}
	return t
}

// underlays are the clusters on which packets go without a tunnel to whom they can. Where two networks are joined by a router
// that knows no pods, host-gw has no way from one to the other, and only the tests about that make sense.
func underlays() [][]string {
	const hostGW, directRouting = `WEFT_BACKEND={"Type": "host-gw"}`, `WEFT_BACKEND={"Type": "vxlan", "DirectRouting": true}`
	return [][]string{
		{laneEnv(lane.Dual), hostGW},
		{laneEnv(lane.Dual), hostGW, "WEFT_UNDERLAY=routed", "WEFT_E2E_FORM=short"},
		{laneEnv(lane.Dual), directRouting, "WEFT_UNDERLAY=routed"},
		{laneEnv(lane.IPv6), directRouting, "WEFT_UNDERLAY=routed", "WEFT_E2E_FORM=short"},
	}
}

// upstream counts as one test: its page in docs/conformance says what became of each spec.
func upstream(ctx context.Context, out io.Writer, l lane.Lane) tally {
	cmd := exec.CommandContext(ctx, "go", "run", "./cmd/cluster", "upstream")
	cmd.Dir, cmd.Env = clusterDir(), append(os.Environ(), laneEnv(l))
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		_, _ = fmt.Fprintf(out, "FAIL Kubernetes' own specs in the lane %s: %v\n", l, err)
		return tally{failed: 1}
	}
	return tally{passed: 1}
}
