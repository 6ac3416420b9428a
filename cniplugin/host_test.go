package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestMain moves the tests into a network and a mount namespace of their own, which play the host: plugins run as
// processes there, with a sysfs and a /run/netns of their own, and the machine is not touched.
func TestMain(m *testing.M) {
	const inside = "CNIPLUGIN_TEST_HOST"
	if os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	if os.Getenv(inside) == "" {
		os.Exit(again(inside))
	}
	if err := becomeHost(); err != nil {
		fmt.Fprintln(os.Stderr, "set up the test's host:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func again(inside string) int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=yes")
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
	return exec.Command("ip", "link", "set", "lo", "up").Run()
}

// plugins gives a folder with the real delegates at the versions of go.mod, and this plugin.
func plugins(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"bridge", "host-local", "portmap", "bandwidth"} {
		out, err := exec.Command("go", "tool", "-n", name).Output()
		if err != nil {
			t.Fatalf("build %s: %v", name, err)
		}
		if err := os.Symlink(strings.TrimSpace(string(out)), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
