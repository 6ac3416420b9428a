// Command sctp stands in for agnhost where conformance suites let pods speak SCTP and the kernel has no SCTP sockets: it sends
// and answers the first two packets of an association (RFC 9260, INIT and INIT ACK) over raw sockets. To a firewall and to
// connection tracking they are SCTP like any other. All else it leaves to agnhost.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// agnhost is where the image keeps the program that this one stands in for.
const agnhost = "/agnhost.real"

// serverPrefix is how the environment of `agnhost porter` names a port.
const serverPrefix = "SERVE_SCTP_PORT_"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) > 0 && args[0] == "connect" && strings.Contains(strings.Join(args, " "), "sctp"):
		return connect(args[1:])
	case len(args) > 0 && args[0] == "porter" && len(ports()) > 0:
		return serve(ports())
	}
	if err := unix.Exec(agnhost, append([]string{agnhost}, args...), os.Environ()); err != nil {
		return fmt.Errorf("UNKNOWN: run %s: %w", agnhost, err)
	}
	return nil
}

// errTimeout is what the suites look for when nothing came back.
var errTimeout = errors.New("TIMEOUT")

func connect(args []string) error {
	flags := flag.NewFlagSet("connect", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	limit := flags.Duration("timeout", time.Second, "how long to wait for an answer")
	flags.String("protocol", "sctp", "sctp")
	if err := flags.Parse(flagsFirst(args)); err != nil {
		return fmt.Errorf("UNKNOWN: %w", err)
	}
	return associate(flags.Arg(0), *limit)
}

// flagsFirst puts flags before the target, since agnhost takes both orders.
func flagsFirst(args []string) []string {
	isFlag := func(a string) int {
		if strings.HasPrefix(a, "-") {
			return 0
		}
		return 1
	}
	return slices.SortedStableFunc(slices.Values(args), func(a, b string) int { return isFlag(a) - isFlag(b) })
}

// ports lists what the environment wants served.
func ports() []string {
	var all []string
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, serverPrefix) {
			all = append(all, strings.TrimPrefix(name, serverPrefix))
		}
	}
	return all
}
