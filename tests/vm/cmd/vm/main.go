// Command vm runs a static program on Debian's kernel in a virtual machine: `vm PROGRAM ARGS...`, as `go test -exec` calls it.
// The folder it is called in is there, and the files that WEFT_VM_FILES names, separated by colons; a folder WEFT_VM_BUILT
// has what the program asks the go command for.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/weft-cni/weft/tests/vm"
)

// limit is of one machine; the tests' own time-out comes before, and prints where they hang.
const limit = 25 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		return 0, fmt.Errorf("want a program and its arguments")
	}
	cache, err := vm.Cache()
	if err != nil {
		return 0, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	j := vm.Job{
		Cache: cache, Args: args, Dir: dir, Timeout: limit, Out: os.Stdout, Log: os.Stderr,
		Built: os.Getenv("WEFT_VM_BUILT"),
		Files: strings.FieldsFunc(os.Getenv("WEFT_VM_FILES"), func(r rune) bool { return r == ':' }),
	}
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "WEFT_") && !strings.HasPrefix(kv, "WEFT_VM_") {
			j.Env = append(j.Env, kv)
		}
	}
	return vm.Run(ctx, j)
}
