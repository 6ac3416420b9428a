package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/collect"
	"github.com/weft-cni/weft/backend/kernel"
)

// machine is a node that is booted again and again, with the agent's collector.
type machine struct {
	*world
	opts collect.Options
	list *libcni.NetworkConfigList
	cni  *libcni.CNIConfig
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	w := newWorld(t)
	own, err := os.Open("/proc/self/ns/net")
	w.must(err)
	t.Cleanup(func() { _ = own.Close() })
	conn, err := kernel.OpenAt(int(own.Fd()))
	w.must(err)
	t.Cleanup(conn.Close)
	m := &machine{world: w, cni: w.cni(), list: w.list("1.0.0")}
	m.opts = collect.Options{
		PodCIDRs: w.ranges(), ClusterID: "c1", Kernel: conn,
		Networks: w.file("networks"), Records: w.file("flannel"), Results: w.file("results"), State: w.file("weft/collect.json"), Proc: w.file("proc"),
	}
	m.until("the kernel is done with the pods of earlier tests", func() bool {
		pods, err := conn.Pods("/run/netns")
		return err == nil && len(pods.Spaces) == 0
	})
	return m
}

// boot is a power cut and what the node is after it: no namespace, no bridge, and nothing in /run, but all that lies on
// the disk, which is an hour old by then.
func (m *machine) boot(id string) {
	m.Helper()
	m.age(time.Hour)
	names, err := filepath.Glob("/run/netns/*")
	m.must(err)
	for _, name := range names {
		m.run("ip", "netns", "del", filepath.Base(name))
	}
	m.until("the ports go", func() bool { return m.ports() == 0 })
	if _, up := look(m.bridge); up {
		m.run("ip", "link", "del", m.bridge)
	}
	m.must(os.Remove(m.file("subnet.env")))
	m.write("proc/sys/kernel/random/boot_id", id+"\n")
	m.write("proc/stat", fmt.Sprintf("btime %d\n", time.Now().Add(-30*time.Minute).Unix()))
}

// age makes what lies on the disk older.
func (m *machine) age(by time.Duration) {
	m.Helper()
	for _, dir := range []string{"networks/cbr0", "flannel", "results"} {
		files, err := filepath.Glob(m.file(dir + "/*"))
		m.must(err)
		for _, f := range files {
			at := time.Now().Add(-by)
			m.must(os.Chtimes(f, at, at))
		}
	}
}

// start makes many pods at once, as a kubelet does after a boot.
func (m *machine) start(name string, n int) []pod {
	m.Helper()
	pods, errs := make([]pod, n), make([]error, n)
	for i := range pods {
		pods[i] = m.pod(fmt.Sprintf("%s-%d", name, i))
	}
	var all sync.WaitGroup
	for i, p := range pods {
		all.Go(func() { _, errs[i] = m.cni.AddNetworkList(context.Background(), m.list, p.runtimeConf()) })
	}
	all.Wait()
	m.must(errors.Join(errs...))
	return pods
}

func (m *machine) pass() collect.Report {
	m.Helper()
	r, err := collect.Run(context.Background(), m.opts)
	m.must(err)
	return r
}

// A range of 61 addresses and 50 pods: each boot needs what the one before left reserved. Five pods are quicker than the
// agent, as on a node whose conflist stayed.
func TestC08AfterEachPowerCutTheAddressesOfDeadPodsAreFreeAndNoOthers(t *testing.T) {
	m := newMachine(t)
	m.writeNode(1, 6)
	m.write("proc/sys/kernel/random/boot_id", "boot-0\n")
	m.write("proc/stat", fmt.Sprintf("btime %d\n", time.Now().Add(-30*time.Minute).Unix()))
	pods, families := m.start("boot-0", 50), len(m.lane.Families())
	if r := m.pass(); r.String() != "" || r.Kept != 50*families {
		t.Fatalf("while all live: %s, kept %d", r, r.Kept)
	}
	for i := range 3 {
		m.boot(fmt.Sprintf("boot-%d", i+1))
		m.writeNode(1, 6)
		quick := m.start(fmt.Sprintf("boot-%d-quick", i+1), 5)
		if r := m.pass(); len(r.Freed) != len(pods)*families || len(r.Records) != len(pods) || r.Kept != len(quick)*families || len(r.Problems) > 0 {
			t.Errorf("boot %d: %s; kept %d, %q", i+1, r, r.Kept, r.Problems)
		}
		m.holds("after the boot's pass", quick...)
		fresh := append(quick, m.start(fmt.Sprintf("boot-%d", i+1), 45)...)
		for _, p := range pods { // the kubelet finds its old sandboxes dead
			m.must(m.cni.DelNetworkList(context.Background(), m.list, p.runtimeConf()))
		}
		m.holds("after the late DELs", fresh...)
		if r := m.pass(); r.String() != "" {
			t.Errorf("boot %d, the next pass: %s", i+1, r)
		}
		pods = fresh
	}
	for _, p := range pods {
		m.must(m.cni.DelNetworkList(context.Background(), m.list, p.runtimeConf()))
	}
	m.nothingLeft()
}

// What living pods lost on disk is put back, each for its pod, and DEL then releases it.
func TestC10ALivingPodKeepsItsAddressWhateverIsLostOnDisk(t *testing.T) {
	m := newMachine(t)
	m.write("proc/sys/kernel/random/boot_id", "boot\n")
	m.write("proc/stat", fmt.Sprintf("btime %d\n", time.Now().Add(-30*time.Minute).Unix()))
	pods := m.start("keep", 6)
	before := m.reserved()
	for i, dir := range []string{"networks/cbr0/*", "flannel/*", "networks/cbr0/*1[.:]*[0-9]"} {
		files, err := filepath.Glob(m.file(dir))
		m.must(err)
		for _, f := range files {
			m.must(os.Remove(f))
		}
		r := m.pass()
		if d := cmp.Diff(before, m.reserved()); d != "" {
			t.Errorf("loss %d of %s: %s %q (-want +got):\n%s", i, dir, r, r.Problems, d)
		}
	}
	late := m.start("late", 1)
	if addr, err := m.store().OwnedBy(ownerOfPod(late[0])); err != nil || len(addr) != len(m.lane.Families()) || addr[0].String() != m.at(8) {
		t.Errorf("the next pod got %v, %v", addr, err)
	}
	for _, p := range append(pods, late...) {
		m.must(m.cni.DelNetworkList(context.Background(), m.list, p.runtimeConf()))
	}
	m.nothingLeft()
}

// A runtime deletes by the chain's end first, and stops at the first plugin that fails: we do not hear of it. It may also
// be killed in an ADD and forget it.
func TestC11WhatNoDelEverReachesIsCollected(t *testing.T) {
	m := newMachine(t)
	m.write("proc/sys/kernel/random/boot_id", "boot\n")
	m.write("proc/stat", fmt.Sprintf("btime %d\n", time.Now().Add(-2*time.Hour).Unix()))
	m.list = m.world.list("1.0.0", portmap())
	pods := m.start("chain", 3)
	m.must(os.Remove(m.bin + "/portmap"))
	for _, p := range pods[:2] {
		if err := m.cni.DelNetworkList(context.Background(), m.list, p.runtimeConf()); err == nil {
			t.Error("DEL succeeded without portmap")
		}
	}
	for _, id := range []string{pods[0].id, "forgotten"} {
		p := pods[0]
		if id == "forgotten" {
			p = m.pod(id)
			m.add(p) // past the runtime's cache
		}
		m.run("ip", "netns", "del", p.id)
	}
	m.age(time.Hour)
	r := m.pass()
	m.holds("after the collector", pods[1:]...)
	if len(r.Freed) != 2*len(m.lane.Families()) || len(r.Records) != 2 || len(r.Problems) > 0 {
		t.Errorf("%s %q", r, r.Problems)
	}
	m.must(os.Symlink(builtPlugin(m, "portmap"), m.bin+"/portmap"))
	for _, p := range pods {
		m.must(m.cni.DelNetworkList(context.Background(), m.list, p.runtimeConf()))
	}
	m.nothingLeft()
}
