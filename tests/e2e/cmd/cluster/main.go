// Command cluster brings a real Kubernetes cluster up on this machine, with the product in it, and takes it down again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"

	"github.com/weft-cni/weft/tests/e2e/artifacts"
	"github.com/weft-cni/weft/tests/e2e/cluster"
	"github.com/weft-cni/weft/tests/e2e/upstream"
)

const usage = `usage: cluster VERB [flags]

  up             build what is missing, start the nodes, install the product, show two pods talking
  down           remove all of it, also what a killed run left behind
  kubectl ARGS   kubectl as the cluster's administrator
  exec NODE CMD  a command on a node (node-1, node-2, ...), on outside or on fabric

  upstream       Kubernetes' own network conformance specs on a cluster of their own; writes docs/conformance/e2e-upstream*.md
  netpol         the same for those of NetworkPolicy; writes docs/conformance/e2e-netpol.md
  policyapi      ClusterNetworkPolicy's conformance suite; writes docs/conformance/clusternetworkpolicy.yaml

flags of up: -nodes N, -proxy-mode iptables|nftables, -lane ipv4|dual|ipv6, -underlay flat|routed,
             -backend '{"Type": "host-gw"}', -bare (no product: nodes stay NotReady)
WEFT_E2E_NAME names the cluster; without it, it is weft. WEFT_LANE, WEFT_UNDERLAY and WEFT_BACKEND are the flags' defaults,
and say on what cluster upstream and netpol run.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		os.Exit(report(err))
	}
}

// report tells what went wrong and returns the exit code: that of the command that was run inside, if one was.
func report(err error) int {
	var inside *insideError
	if errors.As(err, &inside) && inside.ExitCode() > 0 {
		return inside.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "cluster:", err)
	return 1
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Print(usage)
		return nil
	}
	cfg, err := cluster.FromEnvironment(cluster.Default().Name)
	if err != nil {
		return err
	}
	cfg.Log, cfg.Keep = os.Stdout, true
	switch args[0] {
	case "up":
		return up(ctx, cfg, args[1:])
	case "down":
		return cluster.Down(ctx, cfg)
	case "upstream":
		return runUpstream(ctx, cfg, upstream.Network(cfg.Lane))
	case "netpol":
		return runUpstream(ctx, cfg, upstream.Netpol(cfg.Lane))
	case "policyapi":
		return runPolicyAPI(ctx, cfg)
	case "kubectl", "exec":
		return inside(ctx, cfg, args)
	}
	return fmt.Errorf("unknown verb %q\n%s", args[0], usage)
}

func up(ctx context.Context, cfg cluster.Config, args []string) error {
	flags := flag.NewFlagSet("up", flag.ContinueOnError)
	flags.IntVar(&cfg.Nodes, "nodes", cfg.Nodes, "how many nodes")
	flags.StringVar(&cfg.ProxyMode, "proxy-mode", cfg.ProxyMode, "kube-proxy's mode")
	flags.StringVar((*string)(&cfg.Lane), "lane", string(cfg.Lane), "the families of the cluster")
	flags.StringVar((*string)(&cfg.Underlay), "underlay", string(cfg.Underlay), "how the nodes are joined")
	flags.StringVar(&cfg.Backend, "backend", cfg.Backend, "net-conf.json's Backend")
	bare := flags.Bool("bare", false, "install no network plugin")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *bare {
		_, err := cluster.Up(ctx, cfg)
		return err
	}
	product, err := cluster.FindProduct(ctx)
	if err != nil {
		return err
	}
	c, err := cluster.Up(ctx, cfg)
	if err != nil {
		return err
	}
	return c.Show(ctx, product)
}

// runUpstream uses a cluster of its own, so that one that is in use stays as it is.
func runUpstream(ctx context.Context, cfg cluster.Config, of upstream.Selection) error {
	source, err := artifacts.Source(ctx)
	if err != nil {
		return err
	}
	cfg.Name, cfg.Keep = cfg.Name+"-upstream", false
	return upstream.Run(ctx, cfg, of, filepath.Join(source, "..", "..", "docs", "conformance", of.File()))
}

func runPolicyAPI(ctx context.Context, cfg cluster.Config) error {
	source, err := artifacts.Source(ctx)
	if err != nil {
		return err
	}
	cfg.Name, cfg.Keep = cfg.Name+"-policyapi", false
	return upstream.RunPolicyAPI(ctx, cfg, filepath.Join(source, "..", "..", "docs", "conformance", "clusternetworkpolicy.yaml"))
}

// insideError is the failure of a command that has told its user all there is to say.
type insideError struct{ *exec.ExitError }

// inside runs a command with this process's own input and output.
func inside(ctx context.Context, cfg cluster.Config, args []string) error {
	c, err := cluster.Open(cfg)
	if err != nil {
		return err
	}
	cmd := c.KubectlCommand(ctx, args[1:]...)
	if args[0] == "exec" {
		if len(args) < 3 {
			return errors.New("usage: cluster exec NODE CMD")
		}
		machine, err := c.Machine(args[1])
		if err != nil {
			return err
		}
		cmd = machine.Command(ctx, args[2:]...)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &insideError{exit}
	}
	return err
}
