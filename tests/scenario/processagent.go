package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

// processAgent is the whole daemon as a process of its own, in the machine's namespace. Killing it is a SIGKILL.
type processAgent struct {
	name       string
	lane       lane.Lane
	program    string
	dir        string // its files: /etc, /run and /var of the machine
	kubeconfig string
	box        *netnsBox
	cmd        *exec.Cmd
	began      int64 // size of the log when it was started
}

// processes makes worlds of namespaces with real daemons and a real API server.
func processes(t testing.TB, api *apiserver.API, program string) flavour {
	f := namespaces(t)
	f.rules = (&rulesModel{scratch: nstest.New(t)}).judge
	f.cluster = func(w *World) (cluster, error) { return newAPICluster(api, w.prefix) }
	f.agent = func(w *World, m *Machine) (agent, error) {
		box, ok := m.box.Box.(*netnsBox)
		if !ok {
			return nil, errors.New("a process lives in a namespace only")
		}
		url := api.Proxy.Listen(t, box.ns, "127.0.0.1:0")
		a := &processAgent{name: m.name, lane: w.lane, program: program, dir: t.TempDir(), kubeconfig: api.KubeconfigFor(url), box: box}
		t.Cleanup(a.kill)
		return a, nil
	}
	return f
}

// build makes the daemon's binary.
func build(t testing.TB) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "flanneld")
	out, err := exec.Command("go", "build", "-o", program, "../..").CombinedOutput()
	if err != nil {
		t.Fatalf("build flanneld: %v\n%s", err, out)
	}
	return program
}

func (a *processAgent) path(name string) string { return filepath.Join(a.dir, name) }

// start implements agent. The daemon takes its MAC from the device that is there, or from its Node; the story puts it
// into the Node beforehand.
func (a *processAgent) start(_ context.Context, settings Settings, _ [2]string) error {
	conf := fmt.Sprintf(`{"Type": %q`, settings.kind())
	if settings.kind() == subnet.VXLAN {
		conf += fmt.Sprintf(`, "VNI": %d, "Port": %d, "DirectRouting": %v`, settings.VNI, settings.Port, settings.Direct)
	}
	if settings.MTU != 0 {
		conf += fmt.Sprintf(`, "MTU": %d`, settings.MTU)
	}
	if err := os.WriteFile(a.path("net-conf.json"), []byte(a.lane.NetConf(conf+"}")), 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(a.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if a.began, err = log.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	if a.began, err = log.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	a.cmd = exec.Command(a.program, "--kube-subnet-mgr", "--ip-masq", "--iface="+underlayDevice,
		"--kubeconfig-file="+a.kubeconfig, "--net-config-path="+a.path("net-conf.json"), "--subnet-file="+a.path("run/subnet.env"),
		"--state-dir="+a.path("state"), "--cni-conf-dir="+a.path("net.d"), "--cni-bin-dir="+a.path("bin"),
		"--cni-source-dir="+a.path("source"), "--cni-data-dir="+a.path("cni"), "--netns-dir="+a.path("netns"),
		"--sysctl-dir=/proc/sys/net")
	a.cmd.Env = []string{"NODE_NAME=" + a.name, "PATH=" + os.Getenv("PATH")}
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return a.box.ns.Do(a.cmd.Start)
}

// sees implements agent: a daemon chooses its port with the first snapshot of the Nodes, and says so.
func (a *processAgent) sees() bool {
	text, err := os.ReadFile(a.path("log"))
	return err == nil && int64(len(text)) > a.began && strings.Contains(string(text[a.began:]), "VXLAN port")
}

// remembers reports whether the daemon has kept the cluster on disk, which it does a moment after it has seen it.
func (a *processAgent) remembers() error {
	_, err := os.Stat(a.path("state/snapshot.json"))
	return err
}

func (a *processAgent) kill() {
	if a.cmd == nil {
		return
	}
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait() // it was killed, which Wait calls an error
	a.cmd = nil
}

// terminate ends the daemon as a rollout does, and wants it to end well. A process that has not said a word yet cannot:
// it has no handler for signals.
func (a *processAgent) terminate(t testing.TB) {
	t.Helper()
	nstest.Eventually(t, patience, func() error {
		if info, err := os.Stat(a.path("log")); err != nil || info.Size() > a.began {
			return err
		}
		return errors.New("the daemon has not said a word")
	})
	cmd := a.cmd
	a.cmd = nil
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the daemon ended with %v after SIGTERM:\n%s", err, a.log())
	}
}

// complains implements agent, by the log. What it does not say any more cannot be told from it.
func (a *processAgent) complains(about, word string) bool {
	text, err := os.ReadFile(a.path("log"))
	if err != nil || word == "" {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, about) && strings.Contains(line, word) {
			return true
		}
	}
	return false
}

// log is the end of what the daemon said.
func (a *processAgent) log() string {
	text, err := os.ReadFile(a.path("log"))
	if err != nil {
		return err.Error()
	}
	const most = 6000
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return strings.TrimSpace(string(text))
}

// chosenMAC is the MACs that a daemon has to use that starts now: those of its devices, so that no peer has to learn
// anything, else those that its Node announces.
func chosenMAC(w *World, m *Machine) [2]string {
	have, err := m.box.Dump(context.Background())
	r, _ := w.cluster.record(m.name)
	macs := m.mac
	for _, f := range w.lane.Families() {
		macs[f] = cmp.Or(r.Half[f].MAC, macs[f])
		if l := have.Links[kernel.DeviceName(f, m.settings.VNI)]; err == nil && l.Kind == "vxlan" && l.MAC != (subnet.MAC{}) {
			macs[f] = l.MAC.String()
		}
	}
	return macs
}

// formerPorts are what a daemon that starts now finds: the ports of its devices, and the one that its Node announces.
func formerPorts(w *World, m *Machine) []uint16 {
	var ports []uint16
	if have, err := m.box.Dump(context.Background()); err == nil {
		for _, l := range have.Links {
			ports = append(ports, l.Port)
		}
	}
	if r, ok := w.cluster.record(m.name); ok {
		port, _ := strconv.ParseUint(r.Port, 10, 16) // what is no port says nothing
		ports = append(ports, uint16(port))
	}
	return slices.DeleteFunc(ports, func(p uint16) bool { return p == 0 || p == m.settings.Port })
}
