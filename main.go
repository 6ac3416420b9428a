// Command flanneld is weft's node agent: it gives the node its share of the pod network and keeps the kernel equal to
// the cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/weft-cni/weft/backend"
	"github.com/weft-cni/weft/backend/cli"
	"github.com/weft-cni/weft/backend/daemon"
	"github.com/weft-cni/weft/backend/doctor"
	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/backend/policy/ask"
	"github.com/weft-cni/weft/subnet/kube"
)

// Set by the build: -ldflags "-X main.release=v0.1.0 -X main.commit=...".
var (
	release = "dev"
	commit  = "unknown"
)

// Exit codes: what a supervisor needs to tell apart.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args, os.Environ(), streams{out: os.Stdout, err: os.Stderr})
	stop()
	os.Exit(code)
}

type streams struct{ out, err io.Writer }

// run is the whole program but for its exit.
func run(ctx context.Context, args, env []string, s streams) int {
	err := dispatch(ctx, args, env, s)
	var usage cli.Usage
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		_, _ = fmt.Fprintln(s.err, "flanneld:", err)
		return exitUsage
	default:
		_, _ = fmt.Fprintln(s.err, "flanneld:", err)
		return exitError
	}
}

// dispatch finds the verb and does it. The image also answers to flannel's install-conf by its name.
func dispatch(ctx context.Context, args, env []string, s streams) error {
	if filepath.Base(args[0]) == "install-conf" {
		return install.Conf(args[1:])
	}
	verb, rest := "run", args[1:]
	if len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		verb, rest = rest[0], rest[1:]
	}
	version := daemon.Version{Release: release, Commit: commit}
	switch verb {
	case "version":
		if len(rest) > 0 {
			return cli.Stray(rest[0])
		}
		return printVersion(s.out, version)
	case "policy":
		if len(rest) == 0 || rest[0] != "audit" && rest[0] != "trace" {
			return cli.WantPolicyVerb()
		}
		verb, rest = "policy "+rest[0], rest[1:]
	case "run", "install-cni", "uninstall", "doctor":
	default:
		return cli.Unknown(verb)
	}
	p, err := cli.Parse(cli.Input{Verb: verb, Args: rest, Env: env, Out: s.out})
	switch {
	case err != nil || p.Help:
		return err
	case p.Version:
		return printVersion(s.out, version)
	}
	p.Config.Version = version
	log := newLog(s.err, p.Verbosity)
	for _, n := range p.Notes {
		log.Warn(n)
	}
	switch verb {
	case "install-cni":
		return daemon.InstallCNI(ctx, p.Config, log)
	case "uninstall":
		if p.KeepDataplane {
			return daemon.HandBack(ctx, p.Config, log)
		}
		return daemon.Uninstall(ctx, p.Config, log)
	case "policy audit":
		return ask.Audit(ctx, questions(p.Config, s.out))
	case "policy trace":
		return ask.Trace(ctx, questions(p.Config, s.out), p.Question)
	case "doctor":
		return doctor.Run(ctx, doctor.Options{
			BeforeMigration: p.BeforeMigration, Out: s.out,
			Kube: kube.ClientOptions{KubeconfigFile: p.Config.Kube.Kubeconfig, APIURL: p.Config.Kube.APIURL},
		})
	default:
		limitMemory()
		return daemon.Run(ctx, p.Config, log)
	}
}

// softMemory is where the collector begins to spend more processor time than memory. Most of what the agent allocates are
// objects that are cut to a twentieth as soon as they are decoded: in a cluster of 100,000 pods 70 MiB are kept, and
// without the limit a busy machine's collector lets 270 MiB come together first.
const softMemory = 190 << 20

// limitMemory leaves alone what an administrator set with GOMEMLIMIT.
func limitMemory() {
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(softMemory)
	}
}

// questions is how the policy verbs reach the API server, and where they answer.
func questions(c daemon.Config, out io.Writer) ask.Options {
	return ask.Options{
		Kube: kube.ClientOptions{KubeconfigFile: c.Kube.Kubeconfig, APIURL: c.Kube.APIURL},
		Node: kube.NameSource{NodeName: c.Kube.NodeName, PodName: c.Kube.PodName, PodNamespace: c.Kube.PodNamespace}, Out: out,
	}
}

func printVersion(w io.Writer, v daemon.Version) error {
	_, err := fmt.Fprintf(w, "flanneld %s (commit %s, %s)\n", v.Release, v.Commit, runtime.Version())
	return err
}

// newLog makes the one logger and lets client-go's klog speak through it, bounded as our loops are. Its chatter about what
// those report anyway begins at the verbosity at which people debug an API.
func newLog(w io.Writer, verbosity int) *slog.Logger {
	const chatter = 4
	level, theirs := slog.LevelInfo, slog.LevelWarn
	if verbosity > 0 {
		level = slog.LevelDebug
	}
	if verbosity >= chatter {
		theirs = slog.Level(-verbosity) // klog's V(n) is slog's level -n
	}
	chat := backend.BoundLog(slog.NewTextHandler(w, &slog.HandlerOptions{Level: theirs}))
	klog.SetSlogLogger(slog.New(chat).With("loop", "client-go"))
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
