package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/vm"
)

// leg is a package whose namespace tests are run on the second kernel.
type leg struct {
	pkg   string
	lane  lane.Lane
	skip  string // of the tests, those that do not depend on the kernel and take long, or need what the machine has not
	short string // of the tests, those of the short form; "" for none
}

// legs are what writes to the kernel, and what only that kernel has.
func legs() []leg {
	return []leg{
		{"./backend/kernel", lane.Dual, "Many|Thousand|Hundred|Scale", "^TestTheKernelHasTheManners"},
		{"./backend/mesh", lane.Dual, "", ""},
		{"./backend/policy", lane.Dual, "Thousand|Million|Scale", "^TestSCTP"},
		{"./backend/policy/gate", lane.Dual, "", ""},
		{"./backend/traffic", lane.Dual, "FiveThousand|RandomConfigs", "^TestM04Pod.*/IPv6/policy_drop"},
		{"./backend/underlay", lane.Dual, "", ""},
		{"./backend/vxlan", lane.Dual, "", ""},
		{"./cniplugin", lane.Dual, "AtAnyStep|ManyCycles|Churn", "^TestSCTP"},
		{"./subnet/attach", lane.Dual, "", ""},
		{"./tests/backends", lane.Dual, "", "^TestNothingOfThePods|^TestABackendIsRolledOut.*/vxlan_and_(wireguard|ipip)$"},
		{"./tests/scenario", lane.Dual, "RealDaemons", ""},
	}
}

// machine runs the tests of the virtual machine, and in it the legs. There a test that is skipped has failed: the machine has
// what this one may lack.
func machine(short bool) func(context.Context, io.Writer) tally {
	return func(ctx context.Context, out io.Writer) tally {
		cache, err := vm.Cache()
		if err != nil {
			return broken(out, err)
		}
		kernel, err := vm.Kernel(ctx, cache)
		if err != nil {
			return broken(out, err)
		}
		_, _ = fmt.Fprintf(out, "on Linux %s, Debian's, emulated\n", kernel)
		own, err := find("Test", inMachine)
		if err != nil {
			return broken(out, err)
		}
		which := own.pattern()
		if short {
			which = "^TestOutput|^TestTheKernelHas"
		}
		t := goTest(ctx, out, ".", append([]string{"-count=1", "-timeout", "20m", "-run", which}, own.packages()...)...)
		dir, err := os.MkdirTemp("", "vm-")
		if err != nil {
			return broken(out, err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		r, err := newRunner(ctx, dir)
		if err != nil {
			return broken(out, err)
		}
		for _, l := range legs() {
			if !short || l.short != "" {
				t.add(r.run(ctx, out, l, short))
			}
		}
		return t
	}
}

// runner is what a leg needs of this machine.
type runner struct {
	program string // stands before the program of a test
	built   string // what tests ask the go command for
	names   founds // of all tests in namespaces
}

func newRunner(ctx context.Context, dir string) (runner, error) {
	r := runner{program: filepath.Join(dir, "vm"), built: filepath.Join(dir, "built")}
	if text, err := exec.CommandContext(ctx, "go", "build", "-o", r.program, "./tests/vm/cmd/vm").CombinedOutput(); err != nil {
		return r, fmt.Errorf("build the runner of the machine: %w: %s", err, text)
	}
	if err := os.Mkdir(r.built, 0o755); err != nil {
		return r, err
	}
	if err := vm.Build(ctx, r.built); err != nil {
		return r, err
	}
	var err error
	r.names, err = find("Test", inNamespaces)
	return r, err
}

// run runs one leg in a machine of its own.
func (r runner) run(ctx context.Context, out io.Writer, l leg, short bool) tally {
	names := slices.DeleteFunc(slices.Clone(r.names), func(f found) bool { return f.pkg != l.pkg })
	if len(names) == 0 {
		return tally{}
	}
	which := []string{"-run", names.pattern()}
	switch {
	case short:
		which = []string{"-run", l.short}
	case l.skip != "":
		which = append(which, "-skip", l.skip)
	}
	p := place{dir: ".", env: []string{"CGO_ENABLED=0", "WEFT_VM_BUILT=" + r.built, laneEnv(l.lane)}}
	t := goTestIn(ctx, out, p, append(append([]string{"-count=1", "-timeout", "20m", "-exec", r.program}, which...), l.pkg)...)
	if t.skipped > 0 {
		_, _ = fmt.Fprintf(out, "FAIL %s: %d tests were skipped, where none may be\n", strings.TrimPrefix(l.pkg, "./"), t.skipped)
		t.failed += t.skipped
		t.skipped = 0
	}
	return t
}
