package reliability

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Agent is the flanneld of a node, as a process in the node's namespace. It can be ended and started again as often as one
// likes; its log goes on.
type Agent struct {
	bench *Bench
	node  *Node
	kube  string // kubeconfig
	http  *http.Client
	port  int // of its health server

	mu     sync.Mutex // guards what follows
	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has ended
	starts int
}

// Options change how an agent is started. The zero value is the plain agent.
type Options struct {
	Program string   // another program than the bench's flanneld
	Args    []string // further arguments
	Env     []string // further environment
	NetConf string   // another net-conf.json
	Cgroup  string   // a cgroup v1 directory to start it in
}

func newAgent(b *Bench, n *Node) *Agent {
	a := &Agent{bench: b, node: n, port: healthPort}
	a.kube = b.API.KubeconfigFor(b.API.Proxy.Listen(b.T, n.NS, "127.0.0.1:0"))
	a.http = n.client()
	b.T.Cleanup(a.http.CloseIdleConnections)
	b.T.Cleanup(a.Kill)
	return a
}

// Command is how the agent is started, but for the namespace: for who wants to start one by other means.
func (a *Agent) Command(o Options) *exec.Cmd {
	n := a.node
	program := o.Program
	if program == "" {
		program = a.bench.Daemon
	}
	cmd := exec.Command(program, append([]string{
		"--kube-subnet-mgr", "--ip-masq", "--iface=" + n.Link, "--kubeconfig-file=" + a.kube, "--net-config-path=" + n.Path("net-conf.json"),
		"--subnet-file=" + n.Path("run/subnet.env"), "--state-dir=" + n.Path("state"), "--cni-conf-dir=" + n.Path("net.d"),
		"--cni-bin-dir=" + n.Path("bin"), "--cni-source-dir=" + n.Path("source"), "--cni-data-dir=" + n.Path("cni"),
		"--netns-dir=" + n.Path("netns"), "--sysctl-dir=/proc/sys/net", "--healthz-ip=127.0.0.1", fmt.Sprintf("--healthz-port=%d", a.port),
	}, o.Args...)...)
	cmd.Env = append([]string{"NODE_NAME=" + n.Name, "PATH=" + os.Getenv("PATH")}, o.Env...)
	// It dies with the test, even when that is killed: the thread that starts it lives as long as the process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

const healthPort = 8081

// Start starts the agent. One that runs already is an error.
func (a *Agent) Start(o Options) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cmd != nil {
		return fmt.Errorf("start the agent of %s: it runs", a.node.Name)
	}
	conf := o.NetConf
	if conf == "" {
		conf = a.bench.NetConf()
	}
	if err := os.WriteFile(a.node.Path("net-conf.json"), []byte(conf), 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(a.node.Path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := a.Command(o)
	cmd.Stdout, cmd.Stderr = log, log
	if err := a.startIn(cmd, o.Cgroup); err != nil {
		return err
	}
	exited := make(chan struct{})
	a.cmd, a.exited = cmd, exited
	a.starts++
	go func() {
		_ = cmd.Wait() // how it ended is asked of ProcessState
		close(exited)
	}()
	return nil
}

// startIn starts the command in the node's namespace, and, if asked to, in a cgroup: by a shell that enters it first.
func (a *Agent) startIn(cmd *exec.Cmd, cgroup string) error {
	if cgroup != "" {
		script := `echo $$ > "$0/cgroup.procs" && exec "$@"`
		args := append([]string{"/bin/sh", "-c", script, cgroup, cmd.Path}, cmd.Args[1:]...)
		cmd.Path, cmd.Args = "/bin/sh", args
	}
	return a.node.NS.Do(cmd.Start)
}

// process is the running process, or an error.
func (a *Agent) process() (*exec.Cmd, chan struct{}, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cmd == nil {
		return nil, nil, fmt.Errorf("the agent of %s does not run", a.node.Name)
	}
	return a.cmd, a.exited, nil
}

// Signal sends a signal.
func (a *Agent) Signal(s syscall.Signal) error {
	cmd, _, err := a.process()
	if err != nil {
		return err
	}
	return cmd.Process.Signal(s)
}

// Kill ends it at once.
func (a *Agent) Kill() {
	cmd, exited, err := a.process()
	if err != nil {
		return
	}
	_ = cmd.Process.Kill() // it may have ended by itself
	<-exited
	a.forget()
}

// Terminate ends it as a rollout does, by SIGTERM, and returns how long it took. An end with another code than 0 is an error.
func (a *Agent) Terminate() (time.Duration, error) {
	cmd, _, err := a.process()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	state, err := a.Wait(patience)
	if err == nil && !state.Success() {
		err = fmt.Errorf("the agent of %s ended with %v after SIGTERM: %s", a.node.Name, state, a.Tail())
	}
	return time.Since(start), err
}

// Wait waits for its end and says how it ended.
func (a *Agent) Wait(within time.Duration) (*os.ProcessState, error) {
	cmd, exited, err := a.process()
	if err != nil {
		return nil, err
	}
	select {
	case <-exited:
	case <-time.After(within):
		return nil, fmt.Errorf("the agent of %s has not ended within %v", a.node.Name, within)
	}
	a.forget()
	return cmd.ProcessState, nil
}

func (a *Agent) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cmd = nil
}

// Starts is how often it was started.
func (a *Agent) Starts() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.starts
}

// PID is the process id, or 0.
func (a *Agent) PID() int {
	cmd, _, err := a.process()
	if err != nil {
		return 0
	}
	return cmd.Process.Pid
}

// Ready asks /readyz. The error has the agent's own reasons.
func (a *Agent) Ready() error { return a.ask("/readyz") }

// Live asks /healthz.
func (a *Agent) Live() error { return a.ask("/healthz") }

func (a *Agent) ask(path string) error {
	text, err := a.Get(path)
	if err != nil {
		return fmt.Errorf("%s of %s: %w: %s", path, a.node.Name, err, text)
	}
	return nil
}

// Get asks the agent's health server for anything: "/metrics".
func (a *Agent) Get(path string) (string, error) {
	resp, err := a.http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", a.port, path))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(body), err
}

// Log is all that the node's agents ever said.
func (a *Agent) Log() string {
	text, err := os.ReadFile(a.node.Path("log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Tail is the end of it.
func (a *Agent) Tail() string {
	text := a.Log()
	return strings.TrimSpace(text[max(0, len(text)-4000):])
}
