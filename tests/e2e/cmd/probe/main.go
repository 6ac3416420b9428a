// Command probe runs inside test pods: it serves what tests measure with, and measures. Each measurement ends with one
// line of JSON on standard output.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"
)

// options are the flags of all verbs; each verb uses those it knows.
type options struct {
	target string
	begun  string        // make this file at the first answer
	until  string        // stop when this file exists
	source string        // the address that the other end must see us under
	limit  time.Duration // stop at the latest after this time
	every  time.Duration // between two packets
	bytes  int64
	count  int
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	verbs := map[string]func(options) (any, error){
		"serve": serve, "ping": ping, "stream": stream, "udp": udpEcho, "send": send, "receive": receive, "connect": connectMany,
	}
	if len(args) == 0 || verbs[args[0]] == nil {
		return fmt.Errorf("usage: probe serve|ping|stream|udp|send|receive|connect [flags] TARGET")
	}
	var o options
	flags := flag.NewFlagSet("probe "+args[0], flag.ContinueOnError)
	flags.StringVar(&o.begun, "begun", "", "make this file at the first answer")
	flags.StringVar(&o.source, "source", "", "the address that the other end must see")
	flags.StringVar(&o.until, "until", "", "stop when this file exists")
	flags.DurationVar(&o.limit, "limit", time.Minute, "stop at the latest after this time")
	flags.DurationVar(&o.every, "every", 10*time.Millisecond, "time between two packets")
	flags.Int64Var(&o.bytes, "bytes", 100<<20, "how much to transfer")
	flags.IntVar(&o.count, "count", 100, "how many packets or connections")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	o.target = flags.Arg(0)
	result, err := verbs[args[0]](o)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// answered says that the measurement has begun; it must not be called by two goroutines at once.
func (o *options) answered() {
	if o.begun == "" {
		return
	}
	if err := os.WriteFile(o.begun, nil, 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "probe: say that it has begun:", err)
	}
	o.begun = ""
}

// over reports whether a measurement that began at start should end.
func (o options) over(start time.Time) bool {
	if time.Since(start) > o.limit {
		return true
	}
	_, err := os.Stat(o.until)
	return o.until != "" && err == nil
}
