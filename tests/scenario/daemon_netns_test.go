package scenario

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
	"github.com/weft-cni/weft/tests/terms"
)

// All of it shares one API server and one binary, which take longer to get up than most stories.
func TestRealDaemonsKeepTheKernelAsTheModelSays(t *testing.T) {
	t.Parallel()
	nstest.NeedRoot(t)
	api, program := apiserver.Start(t), build(t)
	worlds := func(t *testing.T) flavour {
		api.Proxy.Open() // the test before may have left it closed
		return processes(t, api, program)
	}
	t.Run("live through the stories", func(t *testing.T) {
		for name, a := range stories(t) {
			if playsOn(a, "daemons") && playsIn(a, lane.Of(t)) {
				t.Run(name, func(t *testing.T) { tell(t, a, worlds(t)) })
			}
		}
	})
	t.Run("end a random story as the model says", func(t *testing.T) {
		improvise(t, worlds(t), seed(t), bound(t))
	})
	if lane.Of(t).Has(subnet.IPv6) {
		t.Run("S-04 leave the host its default route from a router", func(t *testing.T) { keepRouter(t, worlds(t)) })
	}
	t.Run("D-14 lose no packet and no byte when they end fifty times", func(t *testing.T) { endFiftyTimes(t, worlds(t)) })
}

func endFiftyTimes(t *testing.T, made flavour) {
	t.Helper()
	w, err := newWorld(made)
	if err != nil {
		t.Fatal(err)
	}
	defer w.end()
	s := &story{World: w}
	for _, line := range []string{"node n1 n2", "synced"} {
		if err := s.line(line); err != nil {
			t.Fatal(err)
		}
	}
	from, to := w.machines["n1"], w.machines["n2"]
	a, b := from.box.Box.(*netnsBox).ns, to.box.Box.(*netnsBox).ns
	f := w.lane.First()
	dst, err := w.gateway(f, to)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(dst, 7000)
	b.TCPEcho(at)
	talk, err := a.Dial("tcp", at, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(talk)
	if _, err := answers.ReadString('\n'); err != nil { // who we are, says the server
		t.Fatal(err)
	}
	show := terms.In(f, "-o link show flannel.1")
	before := map[*Machine]string{from: a.IP(show), to: b.IP(show)}
	pings := a.StartPing(nstest.Ping{Dst: dst})
	for i := range 50 {
		m := []*Machine{from, to}[i%2]
		if i%4 < 2 {
			m.agent.(*processAgent).terminate(t)
		} else {
			w.kill(m)
		}
		m.alive = false
		if err := w.start(m); err != nil {
			t.Fatal(err)
		}
		if i%5 == 0 { // now and then let it come all the way up
			if err := w.synced(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := talk.Write([]byte{byte(i)}); err != nil {
			t.Fatalf("the stream broke after %d ends: %v", i, err)
		}
		if got, err := answers.ReadByte(); err != nil || got != byte(i) {
			t.Fatalf("the stream answers %d, %v after %d ends", got, err, i)
		}
	}
	if r := pings.Stop(); len(r.Lost) > 0 {
		t.Errorf("pings over 50 ends: %s", r)
	}
	for m, was := range before {
		now := m.box.Box.(*netnsBox).ns.IP(show)
		if index(was) != index(now) {
			t.Errorf("%s has another device than before:\n%s%s", m.name, was, now)
		}
	}
}

// index is the device's number in ip's output.
func index(line string) string {
	number, _, _ := strings.Cut(line, ":")
	return number
}

// keepRouter starts a daemon on a host whose default route came from a router advertisement, and which forwards nothing yet.
func keepRouter(t *testing.T, made flavour) {
	t.Helper()
	w, err := newWorld(made)
	if err != nil {
		t.Fatal(err)
	}
	defer w.end()
	s := &story{World: w}
	for _, line := range []string{"node n1 n2", "synced", "kill n1", "do n1 ip link del flannel.1"} {
		if err := s.line(line); err != nil {
			t.Fatal(err)
		}
	}
	m := w.machines["n1"]
	box := m.box.Box.(*netnsBox)
	const lifetime = 10 * time.Second
	box.ns.SetSysctl("net.ipv6.conf.all.forwarding", "0")
	box.fabric.Switch.Advertise("br0", lifetime)
	routed := func() error {
		if !strings.Contains(box.ns.IP("-6 route show default proto ra"), " dev "+underlayDevice) {
			return errors.New("there is no default route from a router")
		}
		return nil
	}
	nstest.Eventually(t, lifetime, routed)
	if err := w.start(m); err != nil {
		t.Fatal(err)
	}
	if err := w.synced(); err != nil {
		t.Fatal(err)
	}
	forwards := func() error {
		if got := box.ns.Sysctl("net.ipv6.conf.all.forwarding"); got != "1" {
			return fmt.Errorf("forwarding is %q", got)
		}
		return nil
	}
	nstest.Eventually(t, patience, forwards)
	// From now on the route lives by what the router says. A host that does not listen any more loses it within a lifetime.
	for end := time.Now().Add(lifetime + time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err := routed(); err != nil {
			t.Fatalf("%v any more, %v before a lifetime is over", err, time.Until(end))
		}
	}
	if err := s.line("ping n1 n2"); err != nil {
		t.Error(err)
	}
}
