package main

import (
	"os"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet/ipam"
)

// The kubelet makes a new sandbox for a pod whose old one died, and the runtime may delete the old one late.
func TestC11ALateDelOfTheOldSandboxHarmsNotTheNewOne(t *testing.T) {
	for name, path := range map[string]string{"that has a namespace of its own": "new", "that was given the same path": "old"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			old := w.pod("old")
			w.add(old)
			w.run("ip", "netns", "del", "old")
			fresh := w.pod(path)
			fresh.id = "new"
			w.add(fresh)
			for range 2 {
				w.del(old)
				w.until("the old port goes", func() bool { return w.ports() == 1 })
				w.holds("after the late DEL", fresh)
				w.run("ip", "netns", "exec", path, "ping", "-c1", "-W5", w.at(1))
			}
			w.del(fresh)
			w.empty()
		})
	}
}

// A runtime that names namespaces by process may be given the number of a process of the host's.
func TestC11ADelIntoTheHostsOwnNamespaceLeavesTheHostsInterface(t *testing.T) {
	for name, record := range map[string]bool{"with a record": true, "without a record": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.run("ip", "link", "add", "eth0", "up", "type", "bridge")
			t.Cleanup(func() { w.run("ip", "link", "del", "eth0") })
			p := w.pod("pid")
			w.add(p)
			w.run("ip", "netns", "del", "pid")
			if !record {
				w.must(os.RemoveAll(w.file("flannel")))
			}
			p.netns = "/proc/self/ns/net"
			w.del(p)
			w.run("ip", "link", "show", "eth0")
			w.until("the port goes", func() bool { return w.ports() == 0 })
			w.empty()
		})
	}
}

// A reservation that was lost and put back without its owner is nobody else's: DEL takes the interface away, and the agent
// frees the address once it no longer lives.
func TestC10ADelTakesTheInterfaceOfAnAddressThatWasPutBack(t *testing.T) {
	for name, record := range map[string]bool{"with a record": true, "without a record": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.pod("back")
			w.add(p)
			w.write("networks/cbr0/"+w.at(2), ipam.Recovered().ContainerID+"\r\n"+ipam.Recovered().IfName)
			if !record {
				w.must(os.RemoveAll(w.file("flannel")))
			}
			w.del(p)
			if _, ok, err := lookIn(p.netns, p.ifc); ok || err != nil || w.ports() != 0 {
				t.Errorf("the interface is there: %v, %v; %d ports", ok, err, w.ports())
			}
			if d := cmp.Diff([]string{w.at(2) + " weft-recovered/eth0"}, w.reserved()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// DEL comes again and again until it succeeds; it must do so when there is nothing left to do.
func TestC07DelWithEverythingMissingSucceeds(t *testing.T) {
	gone := map[string]func(*world, pod){
		"namespace":    func(w *world, p pod) { w.run("ip", "netns", "del", p.id) },
		"record":       func(w *world, _ pod) { w.must(os.RemoveAll(w.file("flannel"))) },
		"reservations": func(w *world, _ pod) { w.must(os.RemoveAll(w.file("networks"))) },
		"subnet.env":   func(w *world, _ pod) { w.must(os.Remove(w.file("subnet.env"))) },
		"bridge":       func(w *world, _ pod) { w.must(os.Remove(w.bin + "/bridge")) },
		"host-local":   func(w *world, _ pod) { w.must(os.Remove(w.bin + "/host-local")) },
	}
	for name, missing := range map[string][]string{
		"all":                        {"namespace", "record", "reservations", "subnet.env", "bridge", "host-local"},
		"all but the record":         {"namespace", "reservations", "subnet.env", "bridge", "host-local"},
		"all but record and plugins": {"namespace", "reservations", "subnet.env"},
		"all but the reservations":   {"namespace", "record", "subnet.env"},
		"all but the namespace":      {"record", "reservations", "subnet.env"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.pod("bare")
			w.add(p)
			for _, what := range missing {
				gone[what](w, p)
			}
			w.del(p)
			w.until("the port goes", func() bool { return w.ports() == 0 })
			w.empty()
			w.del(p)
		})
	}
}

// A delegate that is missing while there is something to release is an error: the agent puts it back within seconds, and
// the kubelet asks again.
func TestC13ADelWithoutItsDelegateIsRetried(t *testing.T) {
	for _, plugin := range []string{"bridge", "host-local"} {
		t.Run(plugin, func(t *testing.T) {
			w := newWorld(t)
			p := w.pod("retry")
			w.add(p)
			w.must(os.Remove(w.bin + "/" + plugin))
			if _, err := w.call("DEL", p, w.conf()); err == nil {
				t.Error("DEL succeeded")
			}
			if d := cmp.Diff([]string{w.at(2) + " retry/eth0"}, w.reserved()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			w.must(os.Symlink(builtPlugin(w, plugin), w.bin+"/"+plugin))
			w.del(p)
			w.empty()
		})
	}
}

// The second of two ADDs of one attachment waits for the first, and is refused by it.
func TestC11TwoAddsOfOneAttachmentAtOnceMakeOne(t *testing.T) {
	w := newWorld(t)
	p, conf := w.pod("both"), w.conf()
	errs := make(chan error)
	for range 2 {
		go func() {
			_, err := w.quiet("ADD", p, conf)
			errs <- err
		}()
	}
	first, second := <-errs, <-errs
	if first == nil == (second == nil) {
		t.Errorf("want one success: %v, %v", first, second)
	}
	if first == nil {
		first = second
	}
	wantCode(t, first, types.ErrInternal, "failed to delegate add: ")
	w.holds("after two ADDs", p)
	w.run("ip", "netns", "exec", p.id, "ping", "-c1", "-W5", w.at(1))
	w.del(p)
	w.empty()
}

func ownerOfPod(p pod) ipam.Owner { return ipam.Owner{ContainerID: p.id, IfName: p.ifc} }
