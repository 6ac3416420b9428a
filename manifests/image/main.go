// Command image builds the container image from the Dockerfile and leaves it as a docker-archive, which `ctr images import`
// and `docker load` take. It uses docker where an engine answers, and buildah elsewhere.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"
)

// build is what the Makefile asks for.
type build struct {
	name, arch, bin, version, commit, out string
	cache                                 string // where buildah keeps its storage between runs
}

func main() {
	var b build
	flag.StringVar(&b.name, "name", "", "image name with tag")
	flag.StringVar(&b.arch, "arch", "amd64", "architecture")
	flag.StringVar(&b.bin, "bin", "bin", "folder of the binaries")
	flag.StringVar(&b.version, "version", "dev", "version for the labels")
	flag.StringVar(&b.commit, "commit", "unknown", "commit for the labels")
	flag.StringVar(&b.out, "out", "dist/image.tar", "archive to write")
	flag.Parse()
	b.cache = os.Getenv("WEFT_CACHE")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := b.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func (b build) run(ctx context.Context) error {
	begin, tool := time.Now(), "buildah"
	steps := b.buildah
	if exec.CommandContext(ctx, "docker", "info").Run() == nil {
		tool, steps = "docker", b.docker
	}
	// Neither tool writes over an archive, and nobody should meet half of one.
	dir, err := os.MkdirTemp(filepath.Dir(b.out), ".image-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	part := filepath.Join(dir, "image.tar")
	if err := steps(ctx, part); err != nil {
		return err
	}
	if err := os.Rename(part, b.out); err != nil {
		return err
	}
	info, err := os.Stat(b.out)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s by %s, %d MB, %.0f s\n", b.out, b.name, tool, info.Size()>>20, time.Since(begin).Seconds())
	return nil
}

// args are the build arguments that both tools take.
func (b build) args(more ...string) []string {
	args := []string{"-f", "Dockerfile", "-t", b.name, "--platform", "linux/" + b.arch}
	for _, a := range append(more, "BIN="+b.bin, "VERSION="+b.version, "COMMIT="+b.commit) {
		args = append(args, "--build-arg", a)
	}
	return append(args, ".")
}

func (b build) docker(ctx context.Context, out string) error {
	if err := run(ctx, "docker", append([]string{"build", "-q"}, b.args()...)...); err != nil {
		return err
	}
	return run(ctx, "docker", "save", "-o", out, b.name)
}

func (b build) buildah(ctx context.Context, out string) error {
	if err := canRun(b.arch, emulators); err != nil {
		return err
	}
	t := storage{dir: filepath.Join(b.cache, "buildah")}
	unlock, err := t.lock()
	if err != nil {
		return err
	}
	defer unlock()
	base := "localhost/weft-debian:bookworm-" + b.arch
	if t.command(ctx, "inspect", "--type", "image", base).Run() != nil {
		if err := t.debian(ctx, base, b.arch); err != nil {
			return fmt.Errorf("make the base image of Debian's packages: %w", err)
		}
	}
	if err := t.run(ctx, append([]string{"bud", "-q", "--layers", "--isolation", "chroot"}, b.args("BASE="+base)...)...); err != nil {
		return err
	}
	if err := t.run(ctx, "push", "-q", b.name, "docker-archive:"+out+":"+b.name); err != nil {
		return err
	}
	// Each build leaves the image it replaces behind, and vfs storage keeps full copies.
	return t.run(ctx, "rmi", "--prune")
}

// run runs a command quietly and shows what it said when it does not work.
func run(ctx context.Context, name string, args ...string) error {
	return quiet(exec.CommandContext(ctx, name, args...))
}

func quiet(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}
