package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/weft-cni/weft/subnet/ipam"
)

// attach makes a pod as a runtime does: the loopback network, then the chain. With a port it is reached through the host.
func (w *world) attach(c *libcni.CNIConfig, l *libcni.NetworkConfigList, p pod, port int) error {
	if _, err := c.AddNetworkList(context.Background(), loopback(w), p.loopback()); err != nil {
		return err
	}
	_, err := c.AddNetworkList(context.Background(), l, p.withPort(port))
	return err
}

func (w *world) detach(c *libcni.CNIConfig, l *libcni.NetworkConfigList, p pod, port int) error {
	return errors.Join(c.DelNetworkList(context.Background(), l, p.withPort(port)), c.DelNetworkList(context.Background(), loopback(w), p.loopback()))
}

// loopback is the network that runtimes attach every pod to beside the configured one.
func loopback(w *world) *libcni.NetworkConfigList {
	l, err := libcni.ConfListFromBytes([]byte(`{"cniVersion":"1.0.0","name":"cni-loopback","plugins":[{"type":"loopback"}]}`))
	w.must(err)
	return l
}

func (p pod) loopback() *libcni.RuntimeConf {
	rt := p.runtimeConf()
	rt.IfName = "lo"
	return rt
}

func (p pod) withPort(port int) *libcni.RuntimeConf {
	rt := p.runtimeConf()
	if port > 0 {
		rt.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": port, "containerPort": 80, "protocol": "tcp"}}}
	}
	return rt
}

// nothingLeft fails unless the node is as if no pod had ever been there.
func (w *world) nothingLeft() {
	w.Helper()
	w.until("all ports go", func() bool { return w.ports() == 0 })
	w.holds("at the end")
	if veths := w.run("ip", "-o", "link", "show", "type", "veth"); veths != "" {
		w.Errorf("veths are left:\n%s", veths)
	}
	if results, unreadable, err := (ipam.Results{Dir: w.file("results")}).List(); err != nil || len(results)+len(unreadable) > 0 {
		w.Errorf("cached results are left: %v, %q, %v", results, unreadable, err)
	}
	for _, save := range []string{"iptables-save", "ip6tables-save"} {
		out, err := exec.Command(save).Output()
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		w.must(err)
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "CNI-DN-") || strings.Contains(line, "10.244.") || strings.Contains(line, "fd00:10:244:") {
				w.Errorf("%s: a rule is left: %s", save, line)
			}
		}
	}
}

func TestC15AHundredAndTenPodsAtOnceComeAndGo(t *testing.T) {
	w := newWorld(t)
	c, l := w.cni(), w.list("1.0.0", portmap())
	pods := make([]pod, 110)
	for i := range pods {
		pods[i] = w.pod(fmt.Sprintf("many-%d", i))
	}
	errs := make([]error, len(pods))
	var all sync.WaitGroup
	for i, p := range pods {
		all.Go(func() { errs[i] = w.attach(c, l, p, 0) })
	}
	all.Wait()
	w.must(errors.Join(errs...))
	w.holds("after the ADDs", pods...)
	for _, p := range pods {
		w.run("ip", "netns", "exec", p.id, "ping", "-c1", "-W5", w.at(1))
	}
	for i, p := range pods {
		all.Go(func() { errs[i] = errors.Join(w.detach(c, l, p, 0), w.detach(c, l, p, 0)) })
	}
	all.Wait()
	w.must(errors.Join(errs...))
	w.nothingLeft()
}

// 2,000 cycles in the long form. Every fourth pod has a port of the host, some lose their namespace before DEL, and
// some are deleted twice.
func TestC08ManyCyclesLeaveNothing(t *testing.T) {
	w := newWorld(t)
	cycles := 200
	if thorough() {
		cycles = 2000
	}
	chain := portmap()
	chain["backend"] = "iptables"
	c, l := w.cni(), w.list("1.0.0", chain)
	stays := w.pod("stays")
	w.must(w.attach(c, l, stays, 0))
	const workers = 3
	errs := make([]error, workers)
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for i := worker; i < cycles && errs[worker] == nil; i += workers {
				errs[worker] = w.cycle(c, l, i)
			}
		})
	}
	all.Wait()
	w.must(errors.Join(errs...))
	w.until("the ports go", func() bool { return w.ports() == 1 })
	w.holds("after the cycles", stays)
	w.run("ip", "netns", "exec", stays.id, "ping", "-c1", "-W5", w.at(1))
	w.must(w.detach(c, l, stays, 0))
	w.nothingLeft()
}

func (w *world) cycle(c *libcni.CNIConfig, l *libcni.NetworkConfigList, i int) error {
	p := pod{id: fmt.Sprintf("cycle-%d", i), ifc: "eth0", netns: fmt.Sprintf("/run/netns/cycle-%d", i)}
	if out, err := exec.Command("ip", "netns", "add", p.id).CombinedOutput(); err != nil {
		return fmt.Errorf("make a namespace: %w: %s", err, out)
	}
	port := 0
	if i%4 == 0 {
		port = 20000 + i
	}
	if err := w.attach(c, l, p, port); err != nil {
		return fmt.Errorf("ADD %s: %w", p.id, err)
	}
	gone := i%7 == 0
	if gone {
		_ = exec.Command("ip", "netns", "del", p.id).Run() // DEL works with it and without
	}
	for range 1 + i%2 {
		if err := w.detach(c, l, p, port); err != nil {
			return fmt.Errorf("DEL %s, without its namespace %v: %w", p.id, gone, err)
		}
	}
	_ = exec.Command("ip", "netns", "del", p.id).Run() // or it is gone
	return nil
}
