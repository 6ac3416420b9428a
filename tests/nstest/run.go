package nstest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Run runs a command in the namespace and returns what it printed on standard output. It ends the test when the
// command fails.
func (n *NS) Run(args ...string) string {
	n.t.Helper()
	out, err := n.Try(args...)
	if err != nil {
		n.t.Fatalf("in %s: %v", n.Name, err)
	}
	return out
}

// Try runs a command in the namespace and returns what it printed on standard output; the error carries what it
// printed on standard error.
func (n *NS) Try(args ...string) (string, error) {
	return n.Input("", args...)
}

// Input is Try with a standard input: `nft -f -`, `iptables-restore`, `ip -batch -`.
func (n *NS) Input(stdin string, args ...string) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	// Start has to run on a thread inside the namespace, since the child inherits it; Wait may run anywhere.
	if err := n.Do(cmd.Start); err != nil {
		return "", fmt.Errorf("start %s: %w", strings.Join(args, " "), err)
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// Start starts a long-running command in the namespace; it is killed when the test ends.
func (n *NS) Start(args ...string) *exec.Cmd {
	n.t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := n.Do(cmd.Start); err != nil {
		n.t.Fatalf("in %s: start %s: %v", n.Name, strings.Join(args, " "), err)
	}
	n.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	return cmd
}

// IP is Run for the ip command: n.IP("link set eth0 up"). Arguments are split at blanks.
func (n *NS) IP(args string) string {
	n.t.Helper()
	return n.Run(append([]string{"ip"}, strings.Fields(args)...)...)
}

// Bridge is Run for the bridge command: n.Bridge("fdb show dev flannel.1").
func (n *NS) Bridge(args string) string {
	n.t.Helper()
	return n.Run(append([]string{"bridge"}, strings.Fields(args)...)...)
}

// NFT is the namespace's whole nftables ruleset without handles and counters, as nft prints it.
func (n *NS) NFT() string {
	n.t.Helper()
	return n.Run("nft", "--stateless", "list", "ruleset")
}

// SetNFT loads an nftables script.
func (n *NS) SetNFT(script string) {
	n.t.Helper()
	if _, err := n.Input(script, "nft", "-f", "-"); err != nil {
		n.t.Fatalf("in %s: %v", n.Name, err)
	}
}

// Sysctl reads a value of /proc/sys, by its dotted name: n.Sysctl("net.ipv4.ip_forward").
func (n *NS) Sysctl(name string) string {
	n.t.Helper()
	var value []byte
	err := n.Do(func() (err error) {
		value, err = os.ReadFile(sysctlPath(name))
		return err
	})
	if err != nil {
		n.t.Fatalf("in %s: read sysctl: %v", n.Name, err)
	}
	return strings.TrimSpace(string(value))
}

// SetSysctl writes a value of /proc/sys.
func (n *NS) SetSysctl(name, value string) {
	n.t.Helper()
	err := n.Do(func() error { return os.WriteFile(sysctlPath(name), []byte(value), 0o644) })
	if err != nil {
		n.t.Fatalf("in %s: write sysctl: %v", n.Name, err)
	}
}

// sysctlPath turns dots into slashes; a slash in the name stands for a dot in a device's name, as in sysctl(8).
func sysctlPath(name string) string {
	swap := strings.NewReplacer(".", "/", "/", ".")
	return filepath.Join("/proc/sys", swap.Replace(name))
}
