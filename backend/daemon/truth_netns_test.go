package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/nstest"
)

// tellsTheTruth makes faults that no agent can mend, and takes them back: each time /readyz has to say so within a second. On a
// machine that others use as well ten times as long is allowed, and the measured times are in the log.
func tellsTheTruth(t *testing.T, api *apiserver.API) {
	const bound = 10 * time.Second
	w := newCrashWorld(t, api)
	a := w.start(0)
	if !w.through(a) {
		t.Fatalf("the agent died:\n%s", a.log)
	}
	port := w.fabric.Port(1)
	foreign := filepath.Join(w.cfg.Paths.CNIConf, "00-other.conf")
	conf, err := os.ReadFile(w.cfg.Paths.NetConf)
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range []struct {
		name     string
		word     string // of the reason
		do, undo func()
	}{
		{"no cable", "eth0 has no carrier", func() { w.fabric.Switch.IP("link set " + port + " down") }, func() { w.fabric.Switch.IP("link set " + port + " up") }},
		{"link down", "eth0 is down", func() { w.node.IP("link set eth0 down") }, func() { w.node.IP("link set eth0 up") }},
		{"no address", "no usable IPv4 address", func() { w.node.IP("addr flush dev eth0") }, func() { w.node.IP("addr add 192.168.50.1/24 dev eth0") }},
		{"no net-conf.json", "net-conf.json", func() { w.write(w.cfg.Paths.NetConf, "{") }, func() { w.write(w.cfg.Paths.NetConf, string(conf)) }},
		{"another CNI first", "00-other.conf", func() { w.write(foreign, `{"name":"x","type":"bridge"}`) }, func() { _ = os.Remove(foreign) }},
	} {
		fault.do()
		lost := nstest.Eventually(t, bound, func() error {
			if err := w.readyz(); err == nil || !strings.Contains(err.Error(), fault.word) {
				return fmt.Errorf("%s: /readyz says %v\n%s", fault.name, fmt.Sprint(err), a.log)
			}
			return nil
		})
		fault.undo()
		back := nstest.Eventually(t, bound, w.readyz)
		t.Logf("%-20s not ready after %-8s ready again after %s", fault.name, lost.Round(time.Millisecond), back.Round(time.Millisecond))
	}
	w.stop(a)
}
