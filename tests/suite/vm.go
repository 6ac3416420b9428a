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
	"time"

	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/vm"
)

// leg is a package whose namespace tests are run on the second kernel.
type leg struct {
	pkg   string
	lane  lane.Lane
	skip  string // of the tests, those that do not depend on the kernel and take long, or need what the machine has not
	short string // of the tests, those of the short form; "" for none
	only  string // of the tests, those that it is about; "" for all
	whole bool   // agents run as processes beside a real API server; on a busy machine it starves, and packets are lost
}

// legs are what writes to the kernel, and what only that kernel has.
func legs() []leg {
	part := func(pkg, skip, short string) leg { return leg{pkg: pkg, lane: lane.Dual, skip: skip, short: short} }
	return []leg{
		part("./backend/kernel", "Many|Thousand|Hundred|Scale", "^TestTheKernelHasTheManners"),
		part("./backend/mesh", "", ""),
		part("./backend/policy", "Thousand|Million|Scale", "^TestSCTP"),
		part("./backend/policy/gate", "", ""),
		part("./backend/traffic", "FiveThousand|RandomConfigs", "^TestM04Pod.*/IPv6/policy_drop"),
		part("./backend/underlay", "", ""),
		part("./backend/vxlan", "", ""),
		part("./cniplugin", "AtAnyStep|ManyCycles|Churn", "^TestSCTP"),
		part("./subnet/attach", "", ""),
		part("./tests/backends", "", "^TestNothingOfThePods|^TestABackendIsRolledOut.*/vxlan_and_(wireguard|ipip)$"),
		{pkg: "./tests/reliability", lane: lane.Dual, only: "^TestFaults.*/^backend$/(wireguard|ipip)", whole: true},
		part("./tests/scenario", "RealDaemons", ""),
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
		dir, err := os.MkdirTemp("", "vm-")
		if err != nil {
			return broken(out, err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		r, t, err := newRunner(ctx, out, dir, short)
		if err != nil {
			return broken(out, err)
		}
		defer r.tests.remove()
		jobs := []func(io.Writer) tally{func(out io.Writer) tally {
			return goTest(ctx, out, ".", append([]string{"-count=1", "-timeout", "20m", "-run", which}, own.packages()...)...)
		}}
		for _, l := range playedLegs(short) {
			jobs = append(jobs, func(out io.Writer) tally { return r.run(ctx, out, l, short) })
		}
		width := 1 // the long form is all that two emulated processors can do
		if short {
			width = 2
		}
		t.add(beside(out, width, jobs))
		return t
	}
}

// playedLegs are the legs that a form plays, the longest first.
func playedLegs(short bool) []leg {
	played := slices.DeleteFunc(legs(), func(l leg) bool { return short && l.short == "" })
	slices.Reverse(played)
	return played
}

// runner is what a leg needs of this machine.
type runner struct {
	program string // stands before the program of a test
	built   string // what tests ask the go command for
	names   founds // of all tests in namespaces
	tests   binaries
}

// newRunner builds all that runs in the machine; the tally has the tests that do not build.
func newRunner(ctx context.Context, out io.Writer, dir string, short bool) (runner, tally, error) {
	r := runner{program: filepath.Join(dir, "vm"), built: filepath.Join(dir, "built")}
	if text, err := exec.CommandContext(ctx, "go", "build", "-o", r.program, "./tests/vm/cmd/vm").CombinedOutput(); err != nil {
		return r, tally{}, fmt.Errorf("build the runner of the machine: %w: %s", err, text)
	}
	if err := os.Mkdir(r.built, 0o755); err != nil {
		return r, tally{}, err
	}
	if err := vm.Build(ctx, r.built); err != nil {
		return r, tally{}, err
	}
	var err error
	if r.names, err = find("Test", inNamespaces); err != nil {
		return r, tally{}, err
	}
	var pkgs []string
	for _, l := range playedLegs(short) {
		pkgs = append(pkgs, l.pkg)
	}
	var t tally
	r.tests, t = buildTests(ctx, out, place{dir: ".", env: []string{"CGO_ENABLED=0"}}, pkgs)
	return r, t, nil
}

// run runs one leg in a machine of its own.
func (r runner) run(ctx context.Context, out io.Writer, l leg, short bool) tally {
	names := slices.DeleteFunc(slices.Clone(r.names), func(f found) bool { return f.pkg != l.pkg })
	if len(names) == 0 {
		return tally{}
	}
	which := []string{"run=" + names.pattern()}
	env := []string{"WEFT_VM_BUILT=" + r.built, laneEnv(l.lane)}
	if l.whole {
		more, err := apiServer()
		if err != nil {
			_, _ = fmt.Fprintf(out, "SKIP %s: %v\n", l.pkg, err)
			return tally{skipped: 1}
		}
		env = append(env, more...)
	}
	switch {
	case short:
		which = []string{"run=" + l.short}
	case l.only != "":
		which = []string{"run=" + l.only}
	case l.skip != "":
		which = append(which, "skip="+l.skip)
	}
	t := r.tests.run(ctx, out, call{pkg: l.pkg, env: env, before: r.program, args: append(which, "timeout=20m")})
	if t.skipped > 0 {
		_, _ = fmt.Fprintf(out, "FAIL %s: %d tests were skipped, where none may be\n", strings.TrimPrefix(l.pkg, "./"), t.skipped)
		t.failed += t.skipped
		t.skipped = 0
	}
	return t
}

// apiServer is the environment of a leg whose agents speak to a real API server: the machine gets the programs that the cache
// has, and what the tests read of the repository.
func apiServer() ([]string, error) {
	cache, err := vm.Cache()
	if err != nil {
		return nil, err
	}
	cache = filepath.Dir(cache)
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	files := []string{filepath.Join(root, "manifests"), filepath.Join(root, "cniplugin")}
	for _, pattern := range []string{"etcd-*/etcd", "kubernetes-*/kube-apiserver"} {
		found, err := filepath.Glob(filepath.Join(cache, "bin", pattern))
		if err != nil || len(found) == 0 {
			return nil, fmt.Errorf("there is no %s in the cache: make cluster builds it", filepath.Base(pattern))
		}
		files = append(files, slices.MaxFunc(found, func(a, b string) int { return changed(a).Compare(changed(b)) }))
	}
	return []string{"WEFT_CACHE=" + cache, "WEFT_RELIABILITY=once", "WEFT_VM_FILES=" + strings.Join(files, ":")}, nil
}

// changed is when a file was written.
func changed(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
