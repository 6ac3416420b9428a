package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet/ipam"
)

// call is one run of another plugin.
type call struct {
	kind  string            // type of the plugin, looked up in path
	path  string            // CNI_PATH
	args  []string          // none for a CNI plugin
	conf  []byte            // its standard input
	env   map[string]string // CNI_ variables that differ from our own
	lock  *ipam.Lock        // inherited, so that the lock outlives us; may be nil
	limit time.Duration

	meanwhile func() // what can be done while the plugin runs; may be nil
	inGroup   bool   // ends with our own process group, not with one of its own
}

// run executes a plugin and returns what it printed. An error of the plugin comes back as *types.Error, as it was.
// This is cni's pkg/invoke without what that links in: the plugin is started for every pod.
func (p plugin) run(ctx context.Context, c call) ([]byte, error) {
	file, err := findPlugin(c.kind, c.path)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	for try := 1; ; try++ {
		out, err := p.runOnce(ctx, file, c)
		// The file may be open for writing in a child that an installer forked just now.
		if !errors.Is(err, syscall.ETXTBSY) || try == 50 {
			return out, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (p plugin) runOnce(ctx context.Context, file string, c call) ([]byte, error) {
	std, err := newStdio(c.conf)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", file, err)
	}
	defer std.close()
	attr := &syscall.ProcAttr{
		Env: withVars(p.environ, oneProcessor, c.env), Files: std.files(),
		Sys: &syscall.SysProcAttr{Setpgid: !c.inGroup}, // a group of its own, so that the address management it starts ends with it
	}
	if c.lock != nil {
		attr.Files = append(attr.Files, c.lock.File().Fd())
	}
	pid, err := syscall.ForkExec(file, append([]string{file}, c.args...), attr)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", file, err)
	}
	target := -pid
	if c.inGroup {
		target = pid
	}
	stop := context.AfterFunc(ctx, func() { _ = syscall.Kill(target, syscall.SIGKILL) }) // or it was quicker
	runtime.Gosched()                                                                    // lets the writing of the record begin; waiting would hold the processor for a while
	for _, f := range []func(){p.idle, c.meanwhile} {
		if f != nil {
			f()
		}
	}
	exit, err := wait(pid, stop)
	if err != nil {
		return nil, fmt.Errorf("wait for %s: %w", file, err)
	}
	stdout, stderr := read(std.out), read(std.err)
	if len(stderr) > 0 {
		_, _ = p.stderr.Write(stderr)
	}
	switch {
	case exit.Exited() && exit.ExitStatus() == 0:
		return stdout, nil
	case ctx.Err() != nil:
		return nil, fail(types.ErrTryAgainLater, "%s did not end in time: %v%s", c.kind, context.Cause(ctx), holders(context.Cause(ctx)))
	}
	return nil, pluginError(c.kind, exit, stdout, stderr)
}

// holders says where to look when a plugin ran out of time: the reference plugins wait for nothing else for so long.
func holders(cause error) string {
	if !errors.Is(cause, context.DeadlineExceeded) {
		return ""
	}
	return "; does somebody hold host-local's lock or that of iptables? See: fuser -v " + ipam.DefaultNetworks + "/*/lock /run/xtables.lock"
}

// exited is CLD_EXITED of waitid(2), missing in the packages.
const exited = 1

// wait waits for the end of a child. Until stop the child is a zombie, so that nobody else gets its number and with it
// the signal that was meant for it. What a child leaves behind that was killed ends with it: an address management that
// goes on after the rollback would reserve an address for nobody.
func wait(pid int, stop func() bool) (exit syscall.WaitStatus, err error) {
	var info unix.Siginfo
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
	}
	stop()
	if err != nil {
		return exit, err
	}
	if info.Code != exited {
		_ = syscall.Kill(-pid, syscall.SIGKILL) // or nobody is left
	}
	_, err = syscall.Wait4(pid, &exit, 0, nil)
	return exit, err
}

func pluginError(kind string, exit syscall.WaitStatus, stdout, stderr []byte) error {
	e := &types.Error{}
	if json.Unmarshal(stdout, e) == nil && (e.Msg != "" || e.Code != 0) {
		return e
	}
	said := strings.TrimSpace(string(stdout) + " " + string(stderr))
	if len(said) > 1000 {
		said = said[:1000]
	}
	how := fmt.Sprintf("exit status %d", exit.ExitStatus())
	if exit.Signaled() {
		how = "signal " + exit.Signal().String()
	}
	return fail(types.ErrInternal, "%s ended with %s and said %q", kind, how, said)
}

// findPlugin looks a plugin up as a runtime does.
func findPlugin(kind, path string) (string, error) {
	if kind == "" || kind == ".." || strings.ContainsRune(kind, filepath.Separator) {
		return "", fail(types.ErrInvalidNetworkConfig, "%q is no plugin type", kind)
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, kind)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
	}
	return "", fmt.Errorf("find plugin %q: it is not in %s; the install-cni step of the agent puts it there", kind, path)
}

// oneProcessor is what a plugin written in Go runs quicker with: it does one thing after the other, and the runtime does not
// wake threads that find nothing to do. A bridge and its host-local take a millisecond less of a processor.
const oneProcessor = "GOMAXPROCS=1"

// withVars replaces variables of an environment; usual is one that stands unless it is set otherwise.
func withVars(environ []string, usual string, vars map[string]string) []string {
	name, _, _ := strings.Cut(usual, "=")
	out := make([]string, 0, len(environ)+len(vars)+1)
	for _, kv := range environ {
		key, _, _ := strings.Cut(kv, "=")
		if key == name {
			usual = ""
		}
		if _, ok := vars[key]; !ok {
			out = append(out, kv)
		}
	}
	for key, value := range vars {
		out = append(out, key+"="+value)
	}
	if usual != "" {
		out = append(out, usual)
	}
	return out
}

// codeOf keeps the code that a delegate or the library supplied.
func codeOf(err error) uint {
	if e := (*types.Error)(nil); errors.As(err, &e) && e.Code != 0 {
		return e.Code
	}
	return types.ErrInternal
}
