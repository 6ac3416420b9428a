package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/weft-cni/weft/subnet"
)

func TestC02StatusIsReadyOnlyWhenAnAddWouldWork(t *testing.T) {
	w := newWorld(t)
	w.version = "1.1.0"
	say := func(s subnet.Status) {
		t.Helper()
		s.Time = time.Now()
		b, err := s.Render()
		w.must(err)
		w.write("weft.json", string(b))
	}
	ready := func() {
		t.Helper()
		if out, err := w.call("STATUS", pod{}, w.conf()); err != nil || out != "" {
			t.Errorf("got %v, printed %q, want ready and silent", err, out)
		}
	}
	not := func(texts ...string) {
		t.Helper()
		_, err := w.call("STATUS", pod{}, w.conf())
		wantCode(t, err, types.ErrPluginNotAvailable, texts...)
	}
	ready() // subnet.env alone counts
	w.must(os.Rename(w.file("subnet.env"), w.file("aside")))
	not("subnet.env: no such file or directory", "the agent has not reported")
	say(subnet.Status{Reason: "API unreachable since 12:00"})
	not("API unreachable since 12:00")
	w.must(os.Rename(w.file("aside"), w.file("subnet.env")))
	not("API unreachable since 12:00")
	say(subnet.Status{Ready: true, Device: "flannel.1"})
	not("the overlay device flannel.1 is missing or down")
	w.run("ip", "link", "add", "flannel.1", "type", "bridge")
	t.Cleanup(func() { w.run("ip", "link", "del", "flannel.1") })
	not("the overlay device flannel.1 is missing or down")
	w.run("ip", "link", "set", "flannel.1", "up")
	ready()
	say(subnet.Status{Ready: true})
	ready()
	w.write("weft.json", "{}")
	not("parse status")
	w.must(os.Remove(w.file("weft.json")))
	w.write("subnet.env", "FLANNEL_MTU")
	not("failed to load flannel 'subnet.env' file: ")
	w.writeNode(1, 0)

	_, err := w.call("STATUS", pod{}, w.conf(with("delegate", map[string]any{"type": 1})))
	wantCode(t, err, types.ErrPluginNotAvailable, "'delegate' dictionary")
	_, err = w.call("STATUS", pod{}, w.conf(with("delegate", 1)))
	wantCode(t, err, types.ErrPluginNotAvailable, "failed to load flannel netconf file")
}

func TestStatusLooksAtTheDeviceOfEachFamily(t *testing.T) {
	w := newWorld(t)
	w.version = "1.1.0"
	devices := []string{"flannel.1", "flannel-v6.1"}
	b, err := subnet.Status{Device: devices[0], Devices: devices, Ready: true, Time: time.Now()}.Render()
	w.must(err)
	w.write("weft.json", string(b))
	for _, name := range devices {
		w.run("ip", "link", "add", name, "up", "type", "bridge")
		t.Cleanup(func() { w.run("ip", "link", "del", name) })
	}
	status := func() error {
		_, err := w.call("STATUS", pod{}, w.conf())
		return err
	}
	w.must(status())
	for _, name := range devices {
		w.run("ip", "link", "set", name, "down")
		wantCode(t, status(), types.ErrPluginNotAvailable, "the overlay device "+name+" is missing or down")
		w.run("ip", "link", "set", name, "up")
		w.must(status())
		w.run("ip", "link", "set", name, "down") // Linux before 6.2 renames none that is up
		w.run("ip", "link", "set", name, "name", "aside")
		w.run("ip", "link", "set", "aside", "up")
		wantCode(t, status(), types.ErrPluginNotAvailable, "the overlay device "+name+" is missing or down")
		w.run("ip", "link", "set", "aside", "down")
		w.run("ip", "link", "set", "aside", "name", name)
		w.run("ip", "link", "set", name, "up")
	}
	for _, name := range devices {
		w.run("ip", "link", "set", name, "down")
	}
	wantCode(t, status(), types.ErrPluginNotAvailable, "the overlay devices flannel.1, flannel-v6.1 are missing or down")
}

func TestC12StatusNamesAPluginThatIsMissing(t *testing.T) {
	for _, name := range []string{"bridge", "host-local"} {
		w := newWorld(t)
		w.must(os.Remove(w.bin + "/" + name))
		_, err := w.call("STATUS", pod{}, w.conf())
		wantCode(t, err, types.ErrPluginNotAvailable, `find plugin "`+name+`": it is not in `+w.bin)
	}
}

func TestStatusAsksTheDelegate(t *testing.T) {
	w := newWorld(t)
	w.replace("bridge", `echo '{"code":4,"msg":"unknown CNI_COMMAND: STATUS"}'; exit 1`) // older than the verb
	if _, err := w.call("STATUS", pod{}, w.conf()); err != nil {
		t.Errorf("a delegate that is older than STATUS: %v", err)
	}
	w.restore("bridge")
	w.replace("bridge", `echo '{"code":1,"msg":"incompatible CNI versions"}'; exit 1`)
	_, err := w.call("STATUS", pod{}, w.conf())
	wantCode(t, err, types.ErrPluginNotAvailable, "bridge: incompatible CNI versions")
}

func TestC18CheckReportsWhatIsWrongAndIsSilentOtherwise(t *testing.T) {
	w := newWorld(t)
	p := w.pod("chk")
	result, err := w.call("ADD", p, w.conf())
	w.must(err)
	check := func() error {
		out, err := w.call("CHECK", p, w.conf(prev(result)))
		if out != "" {
			t.Errorf("printed %q", out)
		}
		return err
	}
	w.must(check())
	var names struct {
		Interfaces []struct{ Name string }
	}
	w.must(json.Unmarshal([]byte(result), &names))
	veth := names.Interfaces[1].Name
	gateway := w.at(1) + map[bool]string{true: "/24", false: "/64"}[w.lane.Has(subnet.IPv4)]
	in := []string{"netns", "exec", "chk", "ip"}
	file := w.file("networks/cbr0/" + w.at(2))
	missing := "host-local" // says so itself, unless it finds the reservation of the other family
	if len(w.lane.Families()) > 1 {
		missing = w.at(2) + " has no reservation"
	}
	for _, c := range []struct {
		what       string
		harm, heal func()
		want       string
	}{
		{"reservation gone", func() { w.must(os.Rename(file, w.file("aside"))) }, func() { w.must(os.Rename(w.file("aside"), file)) }, missing},
		{"reservation of somebody else", func() {
			w.write("networks/cbr0/"+w.at(3), "chk\r\neth0")
			w.write("networks/cbr0/"+w.at(2), "x\r\neth0")
		},
			func() {
				w.write("networks/cbr0/"+w.at(2), "chk\r\neth0")
				w.must(os.Remove(w.file("networks/cbr0/" + w.at(3))))
			}, w.at(2) + " is reserved for x/eth0, not for chk/eth0"},
		{"reservation empty", func() { w.write("networks/cbr0/"+w.at(3), "chk\r\neth0"); w.write("networks/cbr0/"+w.at(2), "") },
			func() {
				w.write("networks/cbr0/"+w.at(2), "chk\r\neth0")
				w.must(os.Remove(w.file("networks/cbr0/" + w.at(3))))
			}, w.at(2) + " has no reservation"},
		{"bridge without its address", func() { w.run("ip", "addr", "del", gateway, "dev", "cni0") }, func() { w.run("ip", "addr", "add", gateway, "dev", "cni0") }, "lacks the address " + w.at(1)},
		{"bridge down", func() { w.run("ip", "link", "set", "cni0", "down") }, func() { w.run("ip", "link", "set", "cni0", "up") }, "the bridge cni0 is missing or down"},
		{"hairpin off", func() { w.run("ip", "link", "set", veth, "type", "bridge_slave", "hairpin", "off") }, func() { w.run("ip", "link", "set", veth, "type", "bridge_slave", "hairpin", "on") }, "hairpin mode off"},
		{"not a port", func() { w.run("ip", "link", "set", veth, "nomaster") }, func() {
			w.run("ip", "link", "set", veth, "master", "cni0")
			w.run("ip", "link", "set", veth, "type", "bridge_slave", "hairpin", "on")
		}, "veth"},
		{"another MTU", func() { w.run("ip", append(in, "link", "set", "eth0", "mtu", "1400")...) }, func() { w.run("ip", append(in, "link", "set", "eth0", "mtu", "1450")...) }, "eth0 has MTU 1400, want 1450"},
		{"address gone", func() {
			w.run("ip", append(in, "addr", "del", strings.Replace(gateway, w.at(1), w.at(2), 1), "dev", "eth0")...)
		}, func() {}, w.at(2)},
	} {
		c.harm()
		if err := check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want ... %q", c.what, err, c.want)
		}
		c.heal()
	}
	_, err = w.call("CHECK", p, w.conf())
	wantCode(t, err, types.ErrInvalidNetworkConfig, "prevResult is missing")
}

func TestCheckWorksWithoutARecord(t *testing.T) {
	w := newWorld(t)
	p := w.pod("chk")
	result, err := w.call("ADD", p, w.conf())
	w.must(err)
	w.must(os.Remove(w.file("flannel/chk")))
	_, err = w.call("CHECK", p, w.conf(prev(result), with("runtimeConfig", map[string]any{})))
	w.must(err)
	_, err = w.call("CHECK", p, w.conf(prev(result), with("delegate", map[string]any{"name": "x"})))
	if err == nil {
		t.Error("no error for a configuration that cannot be completed")
	}
}
