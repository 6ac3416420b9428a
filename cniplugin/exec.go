package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/weft-cni/weft/subnet/ipam"
)

// call is one run of another plugin.
type call struct {
	kind  string            // type of the plugin, looked up in path
	path  string            // CNI_PATH
	conf  []byte            // its standard input
	env   map[string]string // CNI_ variables that differ from our own
	lock  *ipam.Lock        // inherited, so that the lock outlives us; may be nil
	limit time.Duration
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
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, file)
	cmd.Env = withVars(p.environ, c.env)
	in, err := input(c.conf)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", file, err)
	}
	defer func() { _ = in.Close() }() // the plugin has its own end
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &stdout, &stderr
	if c.lock != nil {
		cmd.ExtraFiles = []*os.File{c.lock.File()}
	}
	// A group of its own, so that the address management it starts ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for what keeps the pipes open all the same
	exit := cmd.Start()
	if exit == nil {
		runtime.Gosched() // lets the writing of the record begin; Wait would hold the processor for a while
		exit = cmd.Wait()
	}
	_, _ = p.stderr.Write(stderr.Bytes())
	switch {
	case exit == nil || errors.Is(exit, exec.ErrWaitDelay): // the latter: a child of its own lives on
		return stdout.Bytes(), nil
	case ctx.Err() != nil:
		return nil, fail(types.ErrTryAgainLater, "%s did not end in time: %v", c.kind, context.Cause(ctx))
	case cmd.ProcessState == nil:
		return nil, fmt.Errorf("start %s: %w", file, exit)
	}
	return nil, pluginError(c.kind, exit, stdout.Bytes(), stderr.Bytes())
}

// input is the plugin's standard input. What fits into a page is put into a pipe beforehand: else a goroutine writes it,
// which comes to run only once the runtime has noticed that we wait.
func input(conf []byte) (io.ReadCloser, error) {
	if len(conf) > 4096 {
		return io.NopCloser(bytes.NewReader(conf)), nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.Write(conf)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func pluginError(kind string, exit error, stdout, stderr []byte) error {
	e := &types.Error{}
	if json.Unmarshal(stdout, e) == nil && (e.Msg != "" || e.Code != 0) {
		return e
	}
	said := strings.TrimSpace(string(stdout) + " " + string(stderr))
	if len(said) > 1000 {
		said = said[:1000]
	}
	return fail(types.ErrInternal, "%s ended with %v and said %q", kind, exit, said)
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

func withVars(environ []string, vars map[string]string) []string {
	var out []string
	for _, kv := range environ {
		key, _, _ := strings.Cut(kv, "=")
		if _, ok := vars[key]; !ok {
			out = append(out, kv)
		}
	}
	for key, value := range vars {
		out = append(out, key+"="+value)
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
