package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/tests/lane"
)

// prev is the result of ADD as the runtime hands it in again.
func prev(out string) func(map[string]any) { return with("prevResult", json.RawMessage(out)) }

func TestC04DelWithAUselessRecordReleasesAll(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "cut short": `{"cniVersion":"1.0.0","hairpinMode":tr`, "zeros": "\x00\x00\x00\x00", "no object": "[]", "not a delegate": "{}",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.pod("c04")
			w.add(p)
			w.write("flannel/c04", content)
			w.del(p)
			w.empty()
		})
	}
}

// What stands in a record's place may be no file at all.
func TestC04DelWithSomethingElseInTheRecordsPlaceReleasesAll(t *testing.T) {
	for name, put := range map[string]func(w *world, path string) error{
		"a directory":               func(_ *world, path string) error { return os.Mkdir(path, 0o700) },
		"a link that leads nowhere": func(_ *world, path string) error { return os.Symlink("nowhere", path) },
		"a link to itself":          func(_ *world, path string) error { return os.Symlink(path, path) },
		"a link to another pod's":   func(w *world, path string) error { return os.Symlink(w.file("flannel/other"), path) },
		"a file without an end":     func(_ *world, path string) error { return os.Truncate(path, 1<<40) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p, other := w.pod("c04"), w.pod("other")
			w.add(p)
			w.add(other)
			path := w.file("flannel/c04")
			if name == "a file without an end" {
				w.write("flannel/c04", "{")
			} else {
				w.must(os.Remove(path))
			}
			w.must(put(w, path))
			w.del(p)
			if _, err := os.Lstat(path); err == nil {
				t.Error("it is still there")
			}
			w.run("ip", "netns", "exec", "other", "ping", "-c1", "-W2", w.at(1))
			w.del(other)
			w.empty()
		})
	}
}

func TestC07DelWithoutARecordReleasesAll(t *testing.T) {
	for name, change := range map[string]func(*world, *pod){
		"and nothing else":            func(*world, *pod) {},
		"nor subnet.env":              func(w *world, _ *pod) { w.must(os.Remove(w.file("subnet.env"))) },
		"nor a namespace":             func(w *world, p *pod) { w.run("ip", "netns", "del", p.id) },
		"nor a path to a namespace":   func(w *world, p *pod) { w.run("ip", "netns", "del", p.id); p.netns = "" },
		"nor a reservation":           func(w *world, _ *pod) { w.must(os.Remove(w.file("networks/cbr0/" + w.at(2)))) },
		"and in another subnet since": func(w *world, _ *pod) { w.writeNode(9, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.pod("c07")
			out, err := w.call("ADD", p, w.conf())
			w.must(err)
			w.must(os.RemoveAll(w.file("flannel")))
			change(w, &p)
			_, err = w.call("DEL", p, w.conf(prev(out)))
			w.must(err)
			w.until("the port goes", func() bool { return w.ports() == 0 })
			w.empty()
		})
	}
}

// A namespace path may be used again by the time of a late DEL.
func TestARebuiltDelDoesNotTakeAnotherAttachmentsInterface(t *testing.T) {
	w := newWorld(t)
	p, late := w.pod("new"), pod{id: "late", ifc: "eth0", netns: "/run/netns/new"}
	w.add(p)
	w.write("networks/cbr0/"+w.at(99), "late\r\neth0")
	w.del(late)
	if d := cmp.Diff([]string{w.at(2) + " new/eth0"}, w.reserved()); d != "" || w.ports() != 1 {
		t.Errorf("%d ports, reserved (-want +got):\n%s", w.ports(), d)
	}
	w.run("ip", "netns", "exec", "new", "ping", "-c1", "-W2", w.at(1))
	w.del(late)
	w.run("ip", "netns", "exec", "new", "ping", "-c1", "-W2", w.at(1))
}

// host-local takes a file without an interface name for any interface of the container.
func TestARebuiltDelDoesNotReleaseAnOldReservationOfAnotherInterface(t *testing.T) {
	w := newWorld(t)
	w.write("networks/cbr0/"+w.at(7), "both")
	w.write("networks/cbr0/last_reserved_ip.0", w.at(7))
	p := w.pod("both")
	p.ifc = "net1"
	w.run("ip", "netns", "exec", "both", "ip", "link", "add", "net1", "type", "bridge")
	w.del(p)
	if d := cmp.Diff([]string{w.at(7) + " both/"}, w.reserved()); d != "" {
		t.Errorf("net1 released (-want +got):\n%s", d)
	}
	p.ifc = "eth0"
	w.del(p)
	w.empty()
}

func TestTwoInterfacesOfAContainerHaveARecordEach(t *testing.T) {
	w := newWorld(t)
	p := w.pod("two")
	q := p
	q.ifc = "net1"
	w.add(p)
	_, err := w.call("ADD", q, w.conf(with("delegate", map[string]any{"bridge": "cni0"})))
	w.must(err)
	if d := cmp.Diff([]string{"two", "two-net1"}, w.recorded()); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
	w.del(q)
	if d := cmp.Diff([]string{w.at(2) + " two/eth0"}, w.reserved()); d != "" {
		t.Errorf("reserved (-want +got):\n%s", d)
	}
	w.run("ip", "netns", "exec", "two", "ping", "-c1", "-W2", w.at(1))
	w.del(p)
	w.empty()
}

func TestDelKeepsTheRecordWhenTheDelegateFails(t *testing.T) {
	w := newWorld(t)
	p := w.pod("keep")
	w.add(p)
	w.must(os.Remove(w.bin + "/host-local"))
	if _, err := w.call("DEL", p, w.conf()); err == nil {
		t.Error("DEL succeeded without host-local")
	}
	if d := cmp.Diff([]string{"keep"}, w.recorded()); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
	w.must(os.Symlink(builtPlugin(w, "host-local"), w.bin+"/host-local"))
	w.del(p)
	w.empty()
}

func TestDelWithAPlainFileForANamespaceReleasesTheAddress(t *testing.T) {
	w := newWorld(t)
	p := w.pod("plain")
	w.add(p)
	w.run("ip", "netns", "del", "plain")
	p.netns = w.file("plain-file")
	w.write("plain-file", "")
	w.del(p)
	if len(w.reserved())+len(w.recorded()) != 0 {
		t.Errorf("left %q, %q", w.reserved(), w.recorded())
	}
}

func TestDelFreesAReservationThatLostItsContent(t *testing.T) {
	w := newWorld(t)
	p := w.pod("empty")
	out, err := w.call("ADD", p, w.conf())
	w.must(err)
	w.write("networks/cbr0/"+w.at(2), "")
	_, err = w.call("DEL", p, w.conf(prev(out)))
	w.must(err)
	w.empty()
}

func TestDelOfABrokenConfigurationUsesTheRecord(t *testing.T) {
	w := newWorld(t)
	p := w.pod("brk")
	w.add(p)
	_, err := w.call("DEL", p, w.conf(with("delegate", "oops")))
	w.must(err)
	w.empty()
}

// What flannel v0.28.9 wrote for its pods: the delegate's configuration under the container's ID.
func TestC25PodsOfFlannelAreDeletedByUsAndOursByFlannel(t *testing.T) {
	w := newWorldIn(t, lane.Dual)
	p := w.pod("c25")
	w.add(p)
	got, err := os.ReadFile(w.file("flannel/c25"))
	w.must(err)
	want := `{"bridge":"cni0","cniVersion":"1.0.0","hairpinMode":true,"ipMasq":false,"ipam":{"dataDir":"` + w.file("networks") +
		`","ranges":[[{"subnet":"10.244.1.0/24"}],[{"subnet":"fd00:10:244:1::/64"}]],"routes":[{"dst":"10.244.0.0/16"},{"dst":"fd00:10:244::/48"}],"type":"host-local"},"isDefaultGateway":true,"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("record (-want +got):\n%s", d)
	}
	info, err := os.Stat(w.file("flannel/c25"))
	w.must(err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	// flannel's DEL hands the bytes to the delegate; its ADD left just such bytes.
	w.write("flannel/c25", want)
	w.del(p)
	w.empty()
}

// flannel keeps one file a container: the second interface overwrote the first one's.
func TestC25BothInterfacesOfAFlannelPodAreReleased(t *testing.T) {
	w := newWorld(t)
	p := w.pod("both")
	q := p
	q.ifc = "net1"
	w.add(p)
	other := func(c map[string]any) {
		c["name"] = "net2"
		c["delegate"] = map[string]any{"bridge": "cni0"}
	}
	_, err := w.call("ADD", q, w.conf(other))
	w.must(err)
	w.must(os.Rename(w.file("flannel/both-net1"), w.file("flannel/both")))
	w.del(p)
	if d := cmp.Diff([]string{}, w.reserved()); d != "" || w.ports() != 1 {
		t.Errorf("%d ports, eth0's network (-want +got):\n%s", w.ports(), d)
	}
	_, err = w.call("DEL", q, w.conf(other))
	w.must(err)
	w.empty()
	if entries, _ := os.ReadDir(w.file("networks/net2")); len(entries) != 1+len(w.lane.Families()) { // lock and last_reserved_ip.0, ...
		t.Errorf("net2: %v", entries)
	}
}

func TestDelOfANetworkThatWasRenamedUsesTheRecord(t *testing.T) {
	w := newWorld(t)
	p := w.pod("ren")
	w.add(p)
	_, err := w.call("DEL", p, w.conf(with("name", "renamed")))
	w.must(err)
	w.empty()
}

// Another address manager keeps its own books: it is called with what the runtime still knows.
func TestARebuiltDelCallsAnotherAddressManager(t *testing.T) {
	w := newWorld(t)
	p := w.pod("other")
	w.write("bin/mine", "")
	w.must(os.WriteFile(w.bin+"/mine", []byte("#!/bin/sh\necho $CNI_COMMAND $CNI_CONTAINERID >> "+w.file("called")+"\n"), 0o755))
	mine := with("ipam", map[string]any{"type": "mine"})
	_, err := w.call("DEL", p, w.conf(mine, prev(`{"cniVersion":"1.0.0","ips":[{"address":"`+w.at(44)+`/24"}]}`)))
	w.must(err)
	if b, _ := os.ReadFile(w.file("called")); strings.TrimSpace(string(b)) != "DEL other" {
		t.Errorf("called with %q", b)
	}
}

func TestARebuiltDelThatFailsSaysSo(t *testing.T) {
	w := newWorld(t)
	p := w.pod("bad")
	w.add(p)
	w.write("flannel/bad", "")
	w.replace("bridge", `echo '{"code":7,"msg":"no"}'; exit 1`)
	_, err := w.call("DEL", p, w.conf())
	wantCode(t, err, types.ErrInvalidNetworkConfig, "no")
	if len(w.recorded()) != 1 {
		t.Error("the record went")
	}
	w.restore("bridge")
	if _, err := w.call("DEL", p, w.conf(with("delegate", map[string]any{"type": 1}))); err == nil {
		t.Error("no error for a configuration from which nothing can be rebuilt")
	}
	w.del(p)
	w.empty()
}

func TestAReservationMadeJustNowIsRolledBack(t *testing.T) {
	w := newWorld(t)
	w.replace("bridge", `[ "$CNI_COMMAND" = ADD ] || exec $REAL; $REAL >/dev/null; echo '{"code":999,"msg":"late trouble"}'; exit 1`)
	_, err := w.call("ADD", w.pod("just"), w.conf())
	wantCode(t, err, types.ErrInternal, "failed to delegate add: late trouble")
	w.empty()
}

func TestAFailedRollbackKeepsTheRecord(t *testing.T) {
	w := newWorld(t)
	w.replace("bridge", `[ "$CNI_COMMAND" = ADD ] && $REAL >/dev/null; echo "some words" >&2; exit 3`)
	p := w.pod("undo")
	_, err := w.call("ADD", p, w.conf())
	wantCode(t, err, types.ErrInternal, "bridge ended with exit status 3", "some words")
	if d := cmp.Diff([]string{"undo"}, w.recorded()); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
	w.restore("bridge")
	w.del(p)
	w.empty()
}

// A read-only or full disk gives no lock and no record; what can be released is.
func TestDelWorksWhereNothingCanBeWritten(t *testing.T) {
	w := newWorld(t)
	p := w.pod("full")
	w.add(p)
	w.must(os.RemoveAll(w.file("flannel")))
	w.write("flannel", "a file in the way")
	_, err := w.call("ADD", w.pod("more"), w.conf())
	wantCode(t, err, types.ErrIOFailure, "not a directory")
	if _, err := w.call("DEL", p, w.conf()); err == nil {
		t.Error("a folder of records that is a file: no error")
	}
	w.must(os.Remove(w.file("flannel")))
	w.must(os.Mkdir(w.file("flannel"), 0o700))
	w.run("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", w.file("flannel"))
	t.Cleanup(func() { w.run("umount", w.file("flannel")) })
	w.del(p)
	w.empty()
}
