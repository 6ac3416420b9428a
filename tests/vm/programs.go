package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	_ "embed"
)

//go:embed go.sh
var goScript string

// programsDir is where the machine has what Build made.
const programsDir = "/job/programs"

// Build makes the programs that tests ask the go command for, for a machine in which there is none: weft's two and the
// plugins that the module records as tools. It must be called at the top of the repository.
func Build(ctx context.Context, dir string) error {
	for pkg, name := range map[string]string{".": "weft", "./cniplugin": "cniplugin"} {
		if _, err := compiler(ctx, "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, name), pkg); err != nil {
			return err
		}
	}
	for _, name := range []string{"bridge", "host-local", "portmap", "bandwidth", "loopback"} {
		path, err := compiler(ctx, "tool", "-n", name)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o755); err != nil {
			return err
		}
	}
	root, err := os.Getwd()
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "root"), []byte(root+"\n"), 0o644))
}

// compiler runs the go command for static programs and returns what it says.
func compiler(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOAMD64=v1")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// addPrograms puts what Build made into an image, and the script that hands it out.
func addPrograms(a *archive, dir string) error {
	if dir == "" {
		return nil
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := a.as(filepath.Join(programsDir, f.Name()), filepath.Join(dir, f.Name())); err != nil {
			return err
		}
	}
	a.entry("/usr/local/bin/go", modeFile|0o755, []byte(goScript))
	return a.err
}
