package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// SuiteEnv names another release of Debian, such as trixie, whose kernel the machine has instead of this one's.
const SuiteEnv = "WEFT_VM_SUITE"

// release is where apt looks for packages: the options that lead it to another release's lists, or none.
type release []string

// chosen is the release that the environment names.
func chosen(ctx context.Context, cache string) (release, error) {
	suite := os.Getenv(SuiteEnv)
	if suite == "" {
		return nil, nil
	}
	dir := filepath.Join(cache, "apt-"+suite)
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	lines, err := sources(ctx, suite)
	if err != nil {
		return nil, err
	}
	list := filepath.Join(dir, "sources.list")
	if err := os.WriteFile(list, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	return release{"-o", "Dir::Etc::sourcelist=" + list, "-o", "Dir::Etc::sourceparts=/dev/null",
		"-o", "Dir::State::lists=" + filepath.Join(dir, "lists"), "-o", "Dir::Cache=" + filepath.Join(dir, "cache")}, nil
}

// sources are this machine's own, with the other release in the place of its own.
func sources(ctx context.Context, suite string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages").Output()
	if err != nil {
		return nil, fmt.Errorf("ask apt for its sources: %w", err)
	}
	own := regexp.MustCompile(`^[a-z]+`) // bookworm, bookworm-updates, bookworm-security
	var lines []string
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "main" {
			continue
		}
		lines = append(lines, fmt.Sprintf("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main", f[0], own.ReplaceAllString(f[1], suite)))
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("apt names no sources of Debian; it takes apt-get update")
	}
	slices.Sort(lines)
	return slices.Compact(lines), nil
}

// command is a program of apt on the release's lists.
func (r release) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, program, append(slices.Clone([]string(r)), args...)...)
}
