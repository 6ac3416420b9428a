package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/ipam"
	"github.com/weft-cni/weft/tests/lane"
)

func TestAddConnectsAPodAndDelLeavesNothing(t *testing.T) {
	w := newWorld(t)
	p := w.pod("one")
	addrs := w.add(p)
	if d := cmp.Diff([]string{w.at(2) + " one/eth0"}, w.reserved()); d != "" || len(addrs) != len(w.lane.Families()) {
		t.Errorf("%v, reserved (-want +got):\n%s", addrs, d)
	}
	if d := cmp.Diff([]string{"one"}, w.recorded()); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
	w.run("ip", "netns", "exec", "one", "ping", "-c1", "-W2", w.at(1))
	w.del(p)
	w.empty()
	w.del(p)
	w.empty()
}

func TestC01WithoutSubnetEnvAddSaysWhyAndDelSucceeds(t *testing.T) {
	w := newWorld(t)
	w.must(os.Remove(w.file("subnet.env")))
	p := w.pod("c01")
	_, err := w.call("ADD", p, w.conf())
	wantCode(t, err, types.ErrTryAgainLater, "failed to load flannel 'subnet.env' file: open "+w.file("subnet.env")+": no such file or directory", "is its pod running?")

	status, err := subnet.Status{Reason: "waiting for podCIDR of node n1", Time: time.Now()}.Render()
	w.must(err)
	w.write("weft.json", string(status))
	_, err = w.call("ADD", p, w.conf())
	wantCode(t, err, types.ErrTryAgainLater, "waiting for podCIDR of node n1")

	w.write("weft.json", "{")
	_, err = w.call("ADD", p, w.conf())
	wantCode(t, err, types.ErrTryAgainLater, "parse status", "look at the log")

	w.del(p)
	w.empty()
}

func TestC01AddWaitsForSubnetEnv(t *testing.T) {
	w := newWorld(t)
	w.must(os.Rename(w.file("subnet.env"), w.file("aside")))
	p := w.pod("c01w")
	time.AfterFunc(300*time.Millisecond, func() { _ = os.Rename(w.file("aside"), w.file("subnet.env")) })
	_, err := w.callWith(context.Background(), "ADD", p, w.conf(), func(p *plugin) { p.envWait = 5 * time.Second })
	w.must(err)
	w.del(p)
}

func TestC11DelWaitsForAnAddThatWaitsForSubnetEnv(t *testing.T) {
	w := newWorld(t)
	w.must(os.Rename(w.file("subnet.env"), w.file("aside")))
	p, conf := w.pod("c11w"), w.conf()
	added := make(chan error, 1)
	go func() {
		_, err := w.callWith(context.Background(), "ADD", p, conf, func(p *plugin) { p.envWait, p.stderr = 20*time.Second, io.Discard })
		added <- err
	}()
	w.until("ADD holds its lock", func() bool { return w.records().Busy(ipam.Owner{ContainerID: p.id, IfName: p.ifc}) })
	_, err := w.callWith(context.Background(), "DEL", p, conf, func(p *plugin) { p.lockWait = 50 * time.Millisecond })
	wantCode(t, err, types.ErrTryAgainLater, "another call works on c11w/eth0")
	w.must(os.Rename(w.file("aside"), w.file("subnet.env")))
	w.must(<-added)
	w.del(p)
	w.empty()
}

// Every attempt has a new container ID, as the kubelet's have.
func TestC06FailedAddsLeaveNoRecords(t *testing.T) {
	w := newWorld(t)
	w.writeNode(1, 3)
	var pods []pod
	size := w.usable(3)
	for i := range size {
		pods = append(pods, w.pod(fmt.Sprintf("c06-%d", i)))
		w.add(pods[i])
	}
	late := w.pod("c06-late")
	for i := range 100 {
		late.id = fmt.Sprintf("c06-late-%d", i)
		_, err := w.call("ADD", late, w.conf())
		wantCode(t, err, types.ErrInternal, "failed to delegate add: ", "no IP addresses available in range set")
	}
	if n := len(w.recorded()); n != size || w.ports() != size {
		t.Errorf("%d records, %d ports, want %d of each", n, w.ports(), size)
	}
	for _, p := range pods {
		w.del(p)
	}
	w.empty()
}

func TestC08AFullRangeIsExplained(t *testing.T) {
	w := newWorld(t)
	w.writeNode(1, 3)
	size := w.usable(3)
	for i := 2; i <= size; i++ {
		w.write("networks/cbr0/"+w.at(i), fmt.Sprintf("dead%d\r\neth0", i))
	}
	w.write("networks/cbr0/"+w.at(size+1), "")
	old := time.Now().Add(-48 * time.Hour)
	w.must(os.Chtimes(w.file("networks/cbr0/"+w.at(3)), old, old))
	_, err := w.call("ADD", w.pod("c08"), w.conf())
	wantCode(t, err, types.ErrInternal, fmt.Sprintf("%d addresses are reserved in %s", size, w.store().Dir), "1 of them by files that name no owner",
		"the oldest, "+w.at(3)+", since "+old.UTC().Format(time.RFC3339)+" by dead3/eth0", "flanneld doctor")
}

func TestK08ABridgeWithTheAddressOfAnotherRangeIsExplained(t *testing.T) {
	w := newWorldIn(t, lane.IPv4) // in IPv6 a bridge may have several
	w.run("ip", "link", "add", "cni0", "type", "bridge")
	w.run("ip", "addr", "add", "10.244.9.1/24", "dev", "cni0")
	_, err := w.call("ADD", w.pod("k08"), w.conf())
	wantCode(t, err, types.ErrInternal, `"cni0" already has an IP address different from 10.244.1.1/24`, "the agent takes the old address off")
	if len(w.reserved())+len(w.recorded()) != 0 {
		t.Errorf("left %q, %q", w.reserved(), w.recorded())
	}
}

func TestC10AnAddressThatLivesWithoutAReservationIsNotHandedOut(t *testing.T) {
	w := newWorld(t)
	p := w.pod("c10a")
	w.add(p)
	w.run("ip", "netns", "exec", "c10a", "ping", "-c1", "-W2", w.at(1))
	w.must(os.Remove(w.file("networks/cbr0/" + w.at(2))))
	w.forget()
	q := w.pod("c10b")
	w.add(q)
	if d := cmp.Diff([]string{w.at(2) + " weft-recovered/eth0", w.at(3) + " c10b/eth0"}, w.reserved()); d != "" {
		t.Errorf("reserved (-want +got):\n%s", d)
	}
	w.del(q)

	// A pod that is gone leaves its ARP entry behind, but does not live.
	w.run("ip", "netns", "del", "c10a")
	w.must(os.Remove(w.file("networks/cbr0/" + w.at(2))))
	w.forget()
	w.until("the port of the pod goes", func() bool { return w.ports() == 0 })
	if addrs := w.add(w.pod("c10c")); addrs[0].String() != w.at(2) {
		t.Errorf("got %v, want the address of the pod that is gone", addrs)
	}
}

// slow makes ADD of the delegate wait for a file, before or after its work.
func (w *world) slow(after bool) {
	wait := `touch ` + w.file("started") + `; while [ ! -e ` + w.file("go") + ` ]; do sleep 0.01; done`
	script := `[ "$CNI_COMMAND" = ADD ] || exec $REAL; ` + wait + `; exec $REAL`
	if after {
		script = `[ "$CNI_COMMAND" = ADD ] || exec $REAL; out=$($REAL) || exit 1; ` + wait + `; echo "$out"`
	}
	w.replace("bridge", script)
}

func TestC11AnAddThatIsToldToStopIsRolledBack(t *testing.T) {
	for name, after := range map[string]bool{"before the delegate's work": false, "after it": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.slow(after)
			p := w.pod("c11")
			ctx, stop := context.WithCancelCause(context.Background())
			failed := make(chan error)
			go func() {
				_, err := w.callWith(ctx, "ADD", p, w.conf(), func(*plugin) {})
				failed <- err
			}()
			w.until("the delegate runs", func() bool { return exists(w.file("started")) })
			stop(errors.New("SIGTERM"))
			wantCode(t, <-failed, types.ErrTryAgainLater, "failed to delegate add: ")
			w.empty()
		})
	}
}

func TestC11AnAddIsBounded(t *testing.T) {
	w := newWorld(t)
	w.slow(false)
	_, err := w.callWith(context.Background(), "ADD", w.pod("c11b"), w.conf(), func(p *plugin) { p.runLimit = 100 * time.Millisecond })
	wantCode(t, err, types.ErrTryAgainLater, "bridge did not end in time", "fuser -v /var/lib/cni/networks/*/lock /run/xtables.lock")
	w.empty()
}

func TestC11DelWaitsForTheAddThatIsUnderWay(t *testing.T) {
	w := newWorld(t)
	w.slow(true)
	p := w.pod("c11d")
	added, deleted := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := w.callWith(context.Background(), "ADD", p, w.conf(), func(*plugin) {})
		added <- err
	}()
	w.until("the delegate runs", func() bool { return exists(w.file("started")) })
	_, err := w.callWith(context.Background(), "DEL", p, w.conf(), func(p *plugin) { p.lockWait = 50 * time.Millisecond })
	wantCode(t, err, types.ErrTryAgainLater, "another call works on c11d/eth0")
	go func() {
		_, err := w.callWith(context.Background(), "DEL", p, w.conf(), func(*plugin) {})
		deleted <- err
	}()
	w.write("go", "")
	w.must(<-added)
	w.must(<-deleted)
	w.empty()
}

func TestC12AMissingDelegateIsNamed(t *testing.T) {
	w := newWorld(t)
	w.must(os.Remove(w.bin + "/bridge"))
	_, err := w.call("ADD", w.pod("c12"), w.conf())
	wantCode(t, err, types.ErrInternal, `failed to delegate add: find plugin "bridge": it is not in `+w.bin)
	w.empty()
}

func TestC15ThirtyFirstAddsAtOnceAllGetANetwork(t *testing.T) {
	w := newWorld(t)
	var pods []pod
	for i := range 30 {
		pods = append(pods, w.pod(fmt.Sprintf("c15-%d", i)))
	}
	errs := make([]error, len(pods))
	var all sync.WaitGroup
	for i, p := range pods {
		all.Go(func() { _, errs[i] = w.quiet("ADD", p, w.conf()) })
	}
	all.Wait()
	w.must(errors.Join(errs...))
	for _, p := range pods {
		w.run("ip", "netns", "exec", p.id, "ping", "-c1", "-W2", w.at(1))
	}
	for i, p := range pods {
		all.Go(func() { _, errs[i] = w.quiet("DEL", p, w.conf()) })
	}
	all.Wait()
	w.must(errors.Join(errs...))
	w.empty()
}

func TestC15ABridgeThatSomebodyTakesDownFailsTheAdd(t *testing.T) {
	for what, command := range map[string]string{
		"set the bridge cni0 down":                     "ip link set cni0 down",
		"took the address GATEWAY off the bridge cni0": "ip addr flush dev cni0",
		"the bridge cni0 went away":                    "ip link del cni0",
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			what := strings.Replace(what, "GATEWAY", w.at(1), 1)
			w.replace("bridge", `[ "$CNI_COMMAND" = ADD ] || exec $REAL; out=$($REAL) || exit 1; `+command+`; echo "$out"`)
			_, err := w.call("ADD", w.pod("c15"), w.conf())
			wantCode(t, err, types.ErrTryAgainLater, what)
			w.empty()
			w.restore("bridge") // and the next ADD mends it
			p := w.pod("c15n")
			w.add(p)
			w.run("ip", "netns", "exec", p.id, "ping", "-c1", "-W2", w.at(1))
		})
	}
}

func TestABridgeWithALargerMTUIsLowered(t *testing.T) {
	w := newWorld(t)
	w.run("ip", "link", "add", "cni0", "type", "bridge")
	w.run("ip", "link", "set", "cni0", "mtu", "1500") // said by somebody, the kernel no longer follows the ports
	w.add(w.pod("mtu"))
	if out := w.run("ip", "-o", "link", "show", "cni0"); !strings.Contains(out, "mtu 1450") {
		t.Error(out)
	}
}

// A runtime that adds twice by mistake must not lose its pod's network by the rollback of the second.
func TestASecondAddOfALivingAttachmentHarmsNothing(t *testing.T) {
	w := newWorld(t)
	p := w.pod("twice")
	w.add(p)
	before, err := os.ReadFile(w.file("flannel/twice"))
	w.must(err)
	for _, keep := range []bool{true, false} {
		if !keep { // and also when its record is lost; ADD tells by the age of the reservation
			old := time.Now().Add(-time.Minute)
			w.must(os.Chtimes(w.file("networks/cbr0/"+w.at(2)), old, old))
			w.must(w.records().Remove(ipam.Owner{ContainerID: "twice", IfName: "eth0"}))
		}
		if _, err := w.call("ADD", p, w.conf(with("cniVersion", "0.4.0"))); err == nil {
			t.Fatal("the second ADD succeeded")
		}
		w.run("ip", "netns", "exec", "twice", "ping", "-c1", "-W2", w.at(1))
		if after, err := os.ReadFile(w.file("flannel/twice")); keep && (err != nil || string(after) != string(before)) {
			t.Errorf("record: %s, %v; want %s", after, err, before)
		}
	}
	w.del(p)
	w.empty()
}

func TestALargeConfigurationReachesTheDelegate(t *testing.T) {
	w := newWorld(t)
	p := w.pod("large")
	out, err := w.call("ADD", p, w.conf(with("delegate", map[string]any{"isDefaultGateway": true, "later": strings.Repeat("x", 200_000)})))
	w.must(err)
	if addrs := ipam.ResultAddrs([]byte(out)); len(addrs) != len(w.lane.Families()) {
		t.Errorf("%s", out)
	}
	w.del(p)
	w.empty()
}
