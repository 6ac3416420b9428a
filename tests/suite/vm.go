package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// inside are the packages whose namespace tests are run on the second kernel: those that write to the kernel.
func inside() []string {
	return []string{"./backend/kernel", "./backend/policy", "./backend/traffic", "./backend/underlay", "./backend/vxlan"}
}

// machine runs the tests of the virtual machine, and in it the namespace tests of what writes to the kernel.
func machine(ctx context.Context, out io.Writer) tally {
	own, err := find("Test", inMachine)
	if err != nil {
		return broken(out, err)
	}
	t := goTest(ctx, out, ".", append([]string{"-count=1", "-timeout", "20m", "-run", own.pattern()}, own.packages()...)...)
	dir, err := os.MkdirTemp("", "vm-")
	if err != nil {
		return broken(out, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	runner := filepath.Join(dir, "vm")
	if text, err := exec.CommandContext(ctx, "go", "build", "-o", runner, "./tests/vm/cmd/vm").CombinedOutput(); err != nil {
		_, _ = out.Write(text)
		return broken(out, err)
	}
	names, err := find("Test", inNamespaces)
	if err != nil {
		return broken(out, err)
	}
	names = slices.DeleteFunc(names, func(f found) bool { return !slices.Contains(inside(), f.pkg) })
	t.add(goTest(ctx, out, ".", append([]string{"-count=1", "-p", "1", "-timeout", "20m", "-exec", runner, "-run", names.pattern()}, inside()...)...))
	return t
}
