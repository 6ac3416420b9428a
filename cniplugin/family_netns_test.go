package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/attach"
	"github.com/weft-cni/weft/subnet/ipam"
	"github.com/weft-cni/weft/tests/lane"
)

// forget has host-local begin at the beginning of its ranges.
func (w *world) forget() {
	w.Helper()
	files, err := filepath.Glob(w.file("networks/cbr0/last_reserved_ip.*"))
	w.must(err)
	for _, f := range files {
		w.must(os.Remove(f))
	}
}

// alone runs the recorded delegate without this plugin.
func (w *world) alone(verb string, p pod, conf []byte) string {
	w.Helper()
	cmd := exec.Command(w.bin + "/bridge")
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+p.id, "CNI_NETNS="+p.netns, "CNI_IFNAME="+p.ifc, "CNI_PATH="+w.bin)
	cmd.Stdin = strings.NewReader(string(conf))
	out, err := cmd.Output()
	if err != nil {
		w.Fatalf("bridge %s: %v: %s", verb, err, out)
	}
	return string(out)
}

var (
	vethName = regexp.MustCompile(`veth[0-9a-f]{8}`)
	anyMAC   = regexp.MustCompile(`([0-9a-f]{2}:){5}[0-9a-f]{2}`)
	lifetime = regexp.MustCompile(`expires \d+sec|inet6 fe80.*\n.*\n|.*fe80::/64.*\n|ff00::/8.*\n`)
)

// inside is what a pod has: addresses and routes, less what is drawn by lot.
func (w *world) inside(p pod) string {
	out := w.run("ip", "-n", p.id, "addr", "show", "dev", p.ifc) + w.run("ip", "-n", p.id, "route") + w.run("ip", "-n", p.id, "-6", "route")
	out = regexp.MustCompile(`(?m)^\d+: .*$`).ReplaceAllString(out, "")
	return anyMAC.ReplaceAllString(lifetime.ReplaceAllString(out, ""), "MAC")
}

func TestTheResultAndThePodAreWhatTheDelegateAloneWouldMake(t *testing.T) {
	for _, l := range lane.Lanes() {
		for _, version := range []string{"0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
			t.Run(string(l)+" "+version, func(t *testing.T) {
				w := newWorldIn(t, l)
				w.version = version
				p := w.pod("same")
				var outs, pods [2]string
				var bridge [2]string
				for i := range outs {
					w.forget()
					if i == 0 {
						out, err := w.call("ADD", p, w.conf())
						w.must(err)
						outs[i] = out
					} else {
						outs[i] = w.alone("ADD", p, w.recordedConf())
					}
					pods[i], bridge[i] = w.inside(p), w.run("ip", "-o", "link", "show", "cni0", "type", "bridge")
					bridge[i] = anyMAC.FindString(bridge[i])
					if version > "0.3.0" && !strings.Contains(outs[i], bridge[i]) {
						t.Errorf("the result does not tell the bridge's MAC %s: %s", bridge[i], outs[i])
					}
					outs[i] = anyMAC.ReplaceAllString(vethName.ReplaceAllString(outs[i], "VETH"), "MAC")
					w.del(p)
				}
				if d := cmp.Diff(outs[1], outs[0]); d != "" {
					t.Errorf("result (-bridge alone +shim):\n%s", d)
				}
				if d := cmp.Diff(pods[1], pods[0]); d != "" || bridge[0] != bridge[1] {
					t.Errorf("pod, on bridges %q (-bridge alone +shim):\n%s", bridge, d)
				}
				w.empty()
			})
		}
	}
}

// recordedConf is what the shim records for a pod.
func (w *world) recordedConf() []byte {
	w.Helper()
	c, err := parseConf(w.conf())
	w.must(err)
	n, err := loadEnv(c.SubnetFile)
	w.must(err)
	rec, err := recordOf(c, n)
	w.must(err)
	return rec.Raw
}

// Linux forgets all neighbours behind an interface whose MAC is set, be it to the one it has, and with them packets that
// wait for an answer.
func TestAnADDLeavesTheNeighboursOfOtherPodsAlone(t *testing.T) {
	for _, l := range lane.Lanes() {
		t.Run(string(l), func(t *testing.T) {
			w := newWorldIn(t, l)
			w.add(w.pod("first"))
			var want []string
			for _, f := range l.Families() {
				addr := strings.TrimSuffix(lane.PodCIDR(f, 1).Addr().Next().String(), "1") + "77"
				w.write("networks/cbr0/"+addr, "other\r\neth0")
				w.run("ip", "neigh", "add", addr, "lladdr", "0a:00:00:00:00:09", "dev", "cni0", "nud", "stale")
				want = append(want, addr)
			}
			for i := range 3 {
				p := w.pod(fmt.Sprintf("more-%d", i))
				w.add(p)
				w.del(p)
			}
			have := w.run("ip", "neigh", "show", "dev", "cni0") + w.run("ip", "-6", "neigh", "show", "dev", "cni0")
			for _, addr := range want {
				if !strings.Contains(have, addr+" ") {
					t.Errorf("%s is forgotten; there are %q", addr, have)
				}
			}
			if how, err := os.ReadFile("/sys/class/net/cni0/addr_assign_type"); err != nil || strings.TrimSpace(string(how)) != "3" {
				t.Errorf("the MAC of the bridge is not pinned: %q, %v", how, err)
			}
		})
	}
}

func TestABridgeThatSomebodyMadeIsCompleted(t *testing.T) {
	for _, l := range lane.Lanes() {
		t.Run(string(l), func(t *testing.T) {
			w := newWorldIn(t, l)
			w.run("ip", "link", "add", "cni0", "type", "bridge") // its MAC would follow its ports
			p := w.pod("one")
			w.add(p)
			before := anyMAC.FindString(w.run("ip", "-o", "link", "show", "cni0"))
			q := w.pod("two")
			w.add(q)
			w.del(p)
			if after := anyMAC.FindString(w.run("ip", "-o", "link", "show", "cni0")); after != before {
				t.Errorf("the bridge had MAC %s and has %s", before, after)
			}
			w.ping(q)
			w.run("ip", "link", "set", "cni0", "down") // IPv6 addresses go with that
			w.add(w.pod("three"))
			w.ping(q)
		})
	}
}

// In the first pod of a node: nothing waits for duplicate address detection, neither on the bridge nor in the pod.
func TestC24APodSendsFromTheFirstMillisecondAndNoAddressIsTentative(t *testing.T) {
	for _, l := range lane.Lanes() {
		t.Run(string(l), func(t *testing.T) {
			w := newWorldIn(t, l)
			for i := range 4 {
				p := w.pod(fmt.Sprintf("c24-%d", i))
				addrs := w.add(p)
				if len(addrs) != len(l.Families()) {
					t.Fatalf("addresses %v", addrs)
				}
				for j, f := range l.Families() {
					gw := lane.PodCIDR(f, 1).Addr().Next()
					w.echoOnce(p, netip.AddrPortFrom(addrs[j], 0), netip.AddrPortFrom(gw, 7000))
				}
				for _, where := range [][]string{{"-n", p.id, "-6", "addr", "show", "dev", "eth0"}, {"-6", "addr", "show", "dev", "cni0", "scope", "global"}} {
					if out := w.run("ip", where...); l.Has(subnet.IPv6) && strings.Contains(out, "tentative") || strings.Contains(out, "dadfailed") {
						t.Errorf("%s", out)
					}
				}
			}
		})
	}
}

// echoOnce sends one datagram from an address of a pod to one of its host, and wants the answer.
func (w *world) echoOnce(p pod, from, to netip.AddrPort) {
	w.Helper()
	server, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(to)) // an address that is tentative cannot be bound
	w.must(err)
	defer func() { _ = server.Close() }()
	go echo(server, "host", new(atomic.Int32))
	var c net.Conn
	w.within(p, func() (err error) {
		c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to))
		return err
	})
	defer func() { _ = c.Close() }()
	if answer := ask(c, 10*time.Second); answer != "host" {
		w.Errorf("%v asked %v once: %q", from, to, answer)
	}
}

// ping reaches the host from a pod in all families of the lane.
func (w *world) ping(p pod) {
	w.Helper()
	for _, f := range w.lane.Families() {
		w.run("ip", "netns", "exec", p.id, "ping", "-c1", "-W5", lane.PodCIDR(f, 1).Addr().Next().String())
	}
}

// The delegate sets no address on a bridge that has one which does not go with it; it says so, as it always did.
func TestAnAddressOfAnotherRangeOnTheBridgeIsTheDelegatesToReport(t *testing.T) {
	for f, addr := range [2]string{"10.244.9.1/24", "fd00:10:244:1::9/60"} {
		t.Run(addr, func(t *testing.T) {
			w := newWorldIn(t, []lane.Lane{lane.IPv4, lane.IPv6}[f])
			w.run("ip", "link", "add", "cni0", "type", "bridge")
			w.run("ip", "addr", "add", addr, "dev", "cni0")
			_, err := w.call("ADD", w.pod("other"), w.conf())
			if err == nil || !strings.Contains(err.Error(), `"cni0" already has an IP address different from`) {
				t.Errorf("%v", err)
			}
		})
	}
}

// S-02: the cluster has both families, this node has one.
func TestS02ANodeWithoutOneFamilyAttachesPodsInTheOther(t *testing.T) {
	for _, f := range subnet.Families() {
		t.Run(f.String(), func(t *testing.T) {
			w := newWorldIn(t, []lane.Lane{lane.IPv4, lane.IPv6}[f])
			text, err := os.ReadFile(w.file("subnet.env"))
			w.must(err)
			other := subnet.Families()[1-f]
			w.write("subnet.env", string(text)+[2]string{"FLANNEL_NETWORK=", "FLANNEL_IPV6_NETWORK="}[other]+lane.Network(other).String()+"\n")
			p := w.pod("s02")
			if addrs := w.add(p); len(addrs) != 1 || subnet.FamilyOf(addrs[0]) != f {
				t.Errorf("addresses %v", addrs)
			}
			if out := w.run("ip", "-n", p.id, []string{"-4", "-6"}[other], "route", "show", lane.Network(other).String()); out != "" {
				t.Errorf("a route of the other family: %s", out)
			}
			for _, where := range [][]string{{"-n", p.id, "addr", "show", "dev", p.ifc, "scope", "global"}, {"addr", "show", "dev", "cni0", "scope", "global"}} {
				if out := w.run("ip", where...); strings.Contains(out, []string{"inet ", "inet6 "}[other]) {
					t.Errorf("an address of the other family: %s", out)
				}
			}
			w.ping(p)
			w.del(p)
			w.empty()
		})
	}
}

// A cluster gets a second family, and loses it again, while pods live.
func TestPodsComeAndGoWhileTheNodeGetsAFamilyAndLosesIt(t *testing.T) {
	for _, only := range []lane.Lane{lane.IPv4, lane.IPv6} {
		t.Run(string(only), func(t *testing.T) {
			w := newWorldIn(t, only)
			var pods []pod
			for i, l := range []lane.Lane{only, lane.Dual, only} {
				w.lane = l
				w.writeNode(1, 0)
				p := w.pod(fmt.Sprintf("move-%d", i))
				if addrs := w.add(p); len(addrs) != len(l.Families()) {
					t.Errorf("%s: %v", l, addrs)
				}
				w.ping(p)
				pods = append(pods, p)
			}
			w.lane = only
			for _, p := range pods {
				w.ping(p)
			}
			w.del(pods[1]) // of both families, where there is one by now
			w.lane = lane.Dual
			w.writeNode(1, 0)
			w.del(pods[0]) // and of one, where there are two
			w.del(pods[2])
			w.empty()
		})
	}
}

// A record that is lost is worked out afresh, also from addresses of a family that is gone.
func TestS02ADelWithoutARecordFreesAddressesOfAFamilyThatIsGone(t *testing.T) {
	w := newWorldIn(t, lane.Dual)
	p := w.pod("lost")
	w.add(p)
	w.must(w.records().Remove(ipam.Owner{ContainerID: p.id, IfName: p.ifc}))
	w.lane = lane.IPv4
	w.writeNode(1, 0)
	w.del(p)
	w.empty()
}

// C-10 in both families: the address of a pod that lost its reservation.
func TestC10AnIPv6AddressThatLivesWithoutAReservationIsNotHandedOut(t *testing.T) {
	w := newWorldIn(t, lane.IPv6)
	p := w.pod("c10a")
	addr := w.add(p)[0]
	w.ping(p)
	w.must(os.Remove(w.file("networks/cbr0/" + addr.String())))
	w.forget()
	q := w.pod("c10b")
	if got := w.add(q)[0]; got == addr {
		t.Errorf("%v was handed out twice", got)
	}
	if r, ok := w.store().Get(addr); !ok || r.Owner != ipam.Recovered() {
		t.Errorf("reserved %v", w.reserved())
	}
}

// S-04: a host whose default route came by router advertisement goes on to listen when the first pod makes it a router.
func TestS04TheHostKeepsItsDefaultRouteWhenForwardingIsSwitchedOn(t *testing.T) {
	w := newWorldIn(t, lane.IPv6)
	router := w.pod("s04-router")
	w.run("ip", "link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", router.id)
	t.Cleanup(func() { w.run("ip", "link", "del", "uplink") })
	w.must(os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("0"), 0o644))
	w.must(os.WriteFile("/proc/sys/net/ipv6/conf/uplink/accept_ra", []byte("1"), 0o644))
	w.run("ip", "link", "set", "uplink", "up")
	w.run("ip", "-n", router.id, "link", "set", "eth0", "up")
	learns := func() {
		w.Helper()
		w.until("a default route is learned", func() bool {
			w.within(router, func() error { _ = advertise(); return nil })
			return strings.Contains(w.run("ip", "-6", "route", "show", "default", "dev", "uplink"), "proto ra")
		})
	}
	learns()
	w.add(w.pod("s04"))
	if out := w.run("ip", "-6", "route", "show", "default", "dev", "uplink"); !strings.Contains(out, "proto ra") {
		t.Errorf("the default route went: %q", out)
	}
	for file, want := range map[string]string{"all/forwarding": "1", "uplink/accept_ra": "2", "cni0/accept_ra": "0"} {
		if got, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + file); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s is %q, %v; want %s", file, got, err, want)
		}
	}
	w.run("ip", "-6", "route", "flush", "default")
	learns()
}

// What was sent to an address before any pod had it waits on the host for somebody who answers. It passed the rules for
// forwarded packets when nobody knew of the pod.
func TestN03WhatWasSentBeforeThePodHadItsAddressIsNotItsFirstPacket(t *testing.T) {
	for _, l := range lane.Lanes() {
		t.Run(string(l), func(t *testing.T) {
			w := newWorldIn(t, l)
			w.shut()
			w.agent(func(n attach.Note) error { return attach.Free(n.Addrs) })
			w.add(w.pod("first")) // makes the bridge
			p := w.pod("c1")
			w.run("ip", "netns", "exec", p.id, "nft", "add table inet count; add chain inet count in { type filter hook input priority 0; }; add rule inet count in meta l4proto udp counter")
			for _, f := range l.Families() {
				next := lane.PodCIDR(f, 1).Addr().Next().Next().Next()
				c, err := net.Dial("udp", netip.AddrPortFrom(next, 7777).String())
				w.must(err)
				defer func() { _ = c.Close() }()
				_, err = c.Write([]byte("early"))
				w.must(err)
				w.until("the packet waits", func() bool {
					return strings.Contains(w.run("ip", "neigh", "show", next.String(), "dev", "cni0"), "INCOMPLETE")
				})
			}
			out, err := w.named("ADD", p, w.conf())
			w.must(err)
			for i, a := range ipam.ResultAddrs([]byte(out)) {
				if want := lane.PodCIDR(l.Families()[i], 1).Addr().Next().Next().Next(); a != want {
					t.Fatalf("the pod got %s, the packet was for %s", a, want)
				}
			}
			w.ping(p) // all that waited has come by now
			if got := w.run("ip", "netns", "exec", p.id, "nft", "list", "chain", "inet", "count", "in"); !strings.Contains(got, "packets 0 ") {
				t.Errorf("%s", got)
			}
		})
	}
}

// In IPv6 nobody tells the host that an address has another MAC now.
func TestAnAddressThatIsUsedAgainIsReachedAtOnce(t *testing.T) {
	for _, l := range lane.Lanes() {
		t.Run(string(l), func(t *testing.T) {
			w := newWorldIn(t, l)
			w.add(w.pod("first"))
			for _, f := range l.Families() {
				next := lane.PodCIDR(f, 1).Addr().Next().Next().Next().String()
				w.run("ip", "neigh", "add", next, "lladdr", "0a:00:00:00:00:09", "dev", "cni0", "nud", "stale")
			}
			set := strings.TrimSuffix(lane.PodCIDR(l.First(), 1).Addr().Next().String(), "1") + "88" // by somebody, for something
			w.run("ip", "neigh", "add", set, "lladdr", "0a:00:00:00:00:08", "dev", "cni0", "nud", "permanent")
			for _, a := range w.add(w.pod("again")) {
				w.run("ping", "-c1", "-W5", a.String())
			}
			if out := w.run("ip", "neigh", "show", set, "dev", "cni0"); !strings.Contains(out, "PERMANENT") {
				t.Errorf("an entry that was set by hand is gone: %q", out)
			}
		})
	}
}
