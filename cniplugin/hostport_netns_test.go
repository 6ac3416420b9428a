package main

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
)

// A resolver's client keeps its socket: its flow must not go on to the pod that was there before.
func TestC20AUDPHostPortReachesTheNextPodAtOnce(t *testing.T) { withRules(t, hostPorts) }

// withRules plays a story with each kind of rules that portmap writes.
func withRules(t *testing.T, story func(t *testing.T, rules string)) {
	for _, rules := range []string{"iptables", "nftables"} {
		t.Run(rules, func(t *testing.T) { story(t, rules) })
	}
}

func hostPorts(t *testing.T, rules string) {
	w := newWorld(t)
	client := w.client("c20-client")
	chained := portmap()
	chained["backend"] = rules
	ctx, l, c := context.Background(), w.list("1.0.0", chained), w.cni()
	sockets := make([]net.Conn, len(w.lane.Families()))
	for i := range 3 {
		p := w.pod(fmt.Sprintf("c20-%d", i))
		rt := p.runtimeConf()
		rt.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 8053, "containerPort": 53, "protocol": "udp"}}}
		_, err := c.AddNetworkList(ctx, l, rt)
		w.must(err)
		for j, f := range w.lane.Families() {
			var server net.PacketConn
			w.within(p, func() (err error) {
				server, err = net.ListenPacket([2]string{"udp4", "udp6"}[f], ":53")
				return err
			})
			go echo(server, p.id, new(atomic.Int32))
			if sockets[j] == nil {
				w.within(client, func() (err error) {
					sockets[j], err = net.Dial("udp", net.JoinHostPort(hostOf(f), "8053"))
					return err
				})
				defer func() { _ = sockets[j].Close() }()
			}
			start, answer := time.Now(), ""
			for answer != p.id && time.Since(start) < 10*time.Second {
				answer = ask(sockets[j], 100*time.Millisecond)
			}
			// A flow that goes on to the old pod does so for as long as it is used: it would never come to the new one.
			if took := time.Since(start); answer != p.id {
				t.Errorf("pod %d in %s: %q after %v, want its answer", i, f, answer, took)
			}
			_ = server.Close()
		}
		w.must(c.DelNetworkList(ctx, l, rt))
		for range 3 { // the client goes on while there is no pod
			for _, s := range sockets {
				_ = ask(s, 20*time.Millisecond)
			}
		}
	}
	w.empty()
}

// A pod that is deleted by force is gone from the API server before its DEL: its successor's ADD comes first, and until the DEL
// the rules of the old one count.
func TestC20AUDPHostPortIsThePodsThatIsAddedBeforeTheOldOnesDEL(t *testing.T) {
	withRules(t, takesOver)
}

func takesOver(t *testing.T, rules string) {
	w := newWorld(t)
	client := w.client("c20-client")
	chained := portmap()
	chained["backend"] = rules
	ctx, l, c := context.Background(), w.list("1.0.0", chained), w.cni()
	var servers []net.PacketConn
	add := func(name string) *libcni.RuntimeConf {
		p := w.pod(name)
		rt := p.runtimeConf()
		rt.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 8053, "containerPort": 53, "protocol": "udp"}}}
		_, err := c.AddNetworkList(ctx, l, rt)
		w.must(err)
		for _, f := range w.lane.Families() {
			w.within(p, func() error {
				server, err := net.ListenPacket([2]string{"udp4", "udp6"}[f], ":53")
				if err == nil {
					servers = append(servers, server)
					go echo(server, p.id, new(atomic.Int32))
				}
				return err
			})
		}
		return rt
	}
	answers := func(s net.Conn, want string) {
		t.Helper()
		start, answer := time.Now(), ""
		for answer != want && time.Since(start) < 10*time.Second {
			answer = ask(s, 100*time.Millisecond)
		}
		if answer != want {
			t.Errorf("%q answers, want %q", answer, want)
		}
	}
	old := add("c20-old")
	var sockets []net.Conn
	for _, f := range w.lane.Families() {
		w.within(client, func() error {
			s, err := net.Dial("udp", net.JoinHostPort(hostOf(f), "8053"))
			sockets = append(sockets, s)
			return err
		})
	}
	for _, s := range sockets {
		answers(s, old.ContainerID)
	}
	young := add("c20-young")
	for _, s := range sockets {
		_ = ask(s, 20*time.Millisecond) // a flow of its own again, by the rules of the old one
	}
	w.must(c.DelNetworkList(ctx, l, old))
	for _, s := range sockets {
		answers(s, young.ContainerID)
		_ = s.Close()
	}
	for _, s := range servers {
		_ = s.Close()
	}
	w.must(c.DelNetworkList(ctx, l, young))
	w.empty()
}
