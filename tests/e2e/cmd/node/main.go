// Command node boots one node of a test cluster and is its process 1. The cluster library calls it; nobody else needs to.
package main

import (
	"fmt"
	"os"

	"github.com/weft-cni/weft/tests/e2e/node"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: node start|init SPEC")
	}
	if args[0] == "init" {
		return node.Init(args[1])
	}
	pid, err := node.Start(args[1])
	if err != nil {
		return err
	}
	fmt.Println(pid)
	return nil
}
