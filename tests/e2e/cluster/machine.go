package cluster

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/weft-cni/weft/tests/e2e/node"
)

// Machine is a place where commands run: a node, the outside host, the fabric.
type Machine struct {
	Name  string
	enter []string // the command line that enters it
	netns string   // the name of its network namespace on this machine
	path  string   // where it finds the cluster's programs, if not where nodes do
}

// namespaceMachine is a machine that is only a network namespace: it shares the host's files. programs is its folder of the
// cluster's programs.
func namespaceMachine(name, netns, programs string) Machine {
	return Machine{Name: name, enter: enterNetns(netns), netns: netns, path: programs + ":"}
}

// Network is the machine's network namespace alone. A command that is started there has no program between it and the
// caller that would keep a signal to itself, so it can be stopped. A pod's network is nothing else.
func (m Machine) Network() Machine {
	if m.netns == "" {
		return m
	}
	return Machine{Name: m.Name, enter: enterNetns(m.netns), netns: m.netns, path: m.path}
}

func enterNetns(name string) []string { return []string{"ip", "netns", "exec", name} }

// Command prepares a command on the machine; the caller runs or starts it.
func (m Machine) Command(ctx context.Context, args ...string) *exec.Cmd {
	line := append(append([]string{}, m.enter...), args...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = []string{"PATH=" + m.path + node.Path, "HOME=/root", "LANG=C.UTF-8", "KUBECONFIG=/etc/kubernetes/admin.conf"}
	return cmd
}

// Exec runs a command on the machine and returns its standard output; an error carries what it said.
func (m Machine) Exec(ctx context.Context, args ...string) (string, error) {
	return m.ExecInput(ctx, nil, args...)
}

// ExecInput is Exec with a standard input.
func (m Machine) ExecInput(ctx context.Context, input io.Reader, args ...string) (string, error) {
	cmd := m.Command(ctx, args...)
	cmd.Stdin = input
	out, err := output(cmd)
	if err != nil {
		return out, fmt.Errorf("on %s: %s: %w", m.Name, strings.Join(args, " "), err)
	}
	return out, nil
}

// output runs cmd; the error, if any, ends with what the command wrote.
func output(cmd *exec.Cmd) (string, error) {
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(errOut.String() + "\n" + out.String())
		if len(said) > 4000 {
			said = "... " + said[len(said)-4000:]
		}
		return out.String(), fmt.Errorf("%w: %s", err, said)
	}
	return out.String(), nil
}
