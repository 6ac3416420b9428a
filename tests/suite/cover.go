package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// parts are the folders whose coverage counts.
var parts = []string{"subnet", "backend", "cniplugin"}

// share is a number of statements and how many of them ran.
type share struct{ all, ran int }

func (s share) percent() float64 {
	if s.all == 0 {
		return 100
	}
	return 100 * float64(s.ran) / float64(s.all)
}

// cover runs the tests of the parts and of everything that tests them from outside, and prints the share of statements that
// ran, per package and per part.
func cover(ctx context.Context, atLeast float64, out io.Writer) error {
	dir, err := os.MkdirTemp("", "cover-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	profile := filepath.Join(dir, "profile")
	pkgs, err := packages(ctx)
	if err != nil {
		return err
	}
	var list []string
	for _, p := range parts {
		list = append(list, "./"+p+"/...")
	}
	args := append([]string{"-p", "1", "-timeout", "30m", "-coverprofile", profile, "-coverpkg", strings.Join(list, ",")}, pkgs...)
	sum := goTest(ctx, out, ".", args...)
	data, err := os.ReadFile(profile)
	if err != nil {
		return fmt.Errorf("read the profile: %w", err)
	}
	byPackage, err := shares(string(data))
	if err != nil {
		return err
	}
	errs := printShares(out, byPackage, atLeast)
	if sum.failed > 0 {
		errs = append(errs, fmt.Errorf("%d tests failed", sum.failed))
	}
	return errors.Join(errs...)
}

// shares reads a profile. With -coverpkg each test binary reports every block, so a block has run if any line says so.
func shares(profile string) (map[string]share, error) {
	ran, size := map[string]bool{}, map[string]int{}
	for line := range strings.Lines(profile) {
		fields := strings.Fields(line)
		if len(fields) != 3 || strings.HasPrefix(line, "mode:") {
			continue
		}
		n, err1 := strconv.Atoi(fields[1])
		count, err2 := strconv.Atoi(fields[2])
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("read the profile: %w", err)
		}
		size[fields[0]] = n
		ran[fields[0]] = ran[fields[0]] || count > 0
	}
	out := map[string]share{}
	for block, n := range size {
		file, _, _ := strings.Cut(block, ":")
		pkg := path.Dir(short(file))
		s := out[pkg]
		s.all += n
		if ran[block] {
			s.ran += n
		}
		out[pkg] = s
	}
	return out, nil
}

func printShares(out io.Writer, byPackage map[string]share, atLeast float64) []error {
	for _, pkg := range slices.Sorted(maps.Keys(byPackage)) {
		s := byPackage[pkg]
		_, _ = fmt.Fprintf(out, "%6.1f %%  %5d statements  %s\n", s.percent(), s.all, pkg)
	}
	_, _ = fmt.Fprintln(out)
	var errs []error
	for _, part := range parts {
		var s share
		for pkg, p := range byPackage {
			if pkg == part || strings.HasPrefix(pkg, part+"/") {
				s.all += p.all
				s.ran += p.ran
			}
		}
		_, _ = fmt.Fprintf(out, "%6.1f %%  %5d statements  %s in all\n", s.percent(), s.all, part)
		if s.percent() < atLeast {
			errs = append(errs, fmt.Errorf("%s: %.1f %% of statements covered; want %.0f %%", part, s.percent(), atLeast))
		}
	}
	return errs
}
