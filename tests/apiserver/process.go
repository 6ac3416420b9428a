package apiserver

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

// process is a child that dies with the test, even when the test is killed.
type process struct {
	cmd  *exec.Cmd
	log  string
	gone chan struct{} // closed when it has ended
}

// startProcess runs a program with its output in a file of dir.
func startProcess(dir, program string, args ...string) (*process, error) {
	log, err := os.CreateTemp(dir, filepath.Base(program)+"*.log")
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program, args...), log: log.Name(), gone: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = log, log, dir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The death signal comes when the thread that forked ends, so that thread waits here.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		defer close(p.gone)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // killed is how it ends
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

// kill ends the process and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.gone
}

// tail is the end of its output.
func (p *process) tail() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-3000):])
}

// freePort finds a TCP port that nobody listens on right now. It is below those that the kernel gives to whoever asks for any:
// such a one could be somebody else's by the time a program has started.
func freePort(t testing.TB) string {
	t.Helper()
	const first, many, tries = 20000, 12000, 100
	var err error
	for range tries {
		port := strconv.Itoa(first + rand.N(many))
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatalf("find a free port: %v", err)
	return ""
}
