package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// inside marks the process that plays the host.
const inside = "CNIPLUGIN_TEST_HOST"

// TestMain moves the tests into a network and a mount namespace of their own, which play the host: plugins run as
// processes there, with a sysfs and a /run/netns of their own, and the machine is not touched.
func TestMain(m *testing.M) {
	fuzzing := slices.ContainsFunc(os.Args, func(a string) bool {
		return strings.HasPrefix(a, "-test.fuzzworker") || strings.HasPrefix(a, "-test.fuzz=") && a != "-test.fuzz="
	})
	if os.Geteuid() != 0 || fuzzing { // the fuzzer's workers hang on their parent by inherited files
		os.Exit(m.Run())
	}
	if os.Getenv(inside) == "" {
		os.Exit(again())
	}
	if err := becomeHost(); err != nil {
		fmt.Fprintln(os.Stderr, "set up the test's host:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func again() int {
	dir, err := os.MkdirTemp("", "cniplugin-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }() // left in /tmp at worst
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		return exit.ExitCode()
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "start the tests in namespaces of their own:", err)
		return 1
	}
	return 0
}

func becomeHost() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount sysfs: %w", err)
	}
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		return err
	}
	for _, dir := range []string{"/run/netns"} {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("mount on %s: %w", dir, err)
		}
	}
	if err := exec.Command("ip", "link", "set", "lo", "up").Run(); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return build()
}

// plugins gives a folder with the real delegates at the versions of go.mod.
func plugins(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"bridge", "host-local", "portmap", "bandwidth", "loopback", "flannel"} {
		if err := os.Symlink(builtPlugin(t, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// builtPlugin is the executable of a plugin in Go's build cache.
func builtPlugin(t testing.TB, name string) string {
	t.Helper()
	path := os.Getenv("CNIPLUGIN_TEST_" + name)
	if path == "" {
		t.Fatalf("%s was not built", name)
	}
	return path
}

// build builds the delegates.
func build() error {
	for _, name := range []string{"bridge", "host-local", "portmap", "bandwidth", "loopback"} {
		tool := exec.Command("go", "tool", "-n", name)
		tool.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := tool.Output()
		if err != nil {
			return fmt.Errorf("build %s: %w", name, err)
		}
		if err := os.Setenv("CNIPLUGIN_TEST_"+name, strings.TrimSpace(string(out))); err != nil {
			return err
		}
	}
	// And this plugin, as a runtime gets it.
	flannel := filepath.Join(os.Getenv(inside), "flannel")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", flannel, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build flannel: %w: %s", err, out)
	}
	return os.Setenv("CNIPLUGIN_TEST_flannel", flannel)
}
