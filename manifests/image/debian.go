package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// storage is a buildah storage of our own. The vfs driver works in any container and on any file system.
type storage struct{ dir string }

func (s storage) command(ctx context.Context, args ...string) *exec.Cmd {
	all := append([]string{"--storage-driver", "vfs", "--root", filepath.Join(s.dir, "root"), "--runroot", filepath.Join(s.dir, "run")}, args...)
	return exec.CommandContext(ctx, "buildah", all...)
}

func (s storage) run(ctx context.Context, args ...string) error {
	return quiet(s.command(ctx, args...))
}

// lock waits until no other build uses the storage: one that prunes would take layers from under the other.
func (s storage) lock() (unlock func(), err error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(s.dir, "lock"))
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock the image storage: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// emulators is where the kernel lists the programs that it runs others' programs with.
const emulators = "/proc/sys/fs/binfmt_misc"

// canRun says why an image for an architecture cannot be made here: its own programs have to run for that.
func canRun(arch, dir string) error {
	if arch == runtime.GOARCH {
		return nil
	}
	machine := map[string]string{"arm64": "aarch64", "amd64": "x86_64"}[arch]
	if _, err := os.Stat(filepath.Join(dir, "qemu-"+machine)); machine != "" && err == nil {
		return nil
	}
	return fmt.Errorf("an image for %s takes running programs of %s, which this %s machine cannot: install qemu-user-static and binfmt-support, "+
		"or build it on a machine of that kind", arch, arch, runtime.GOARCH)
}

// debian makes a base image as slim as debian:bookworm-slim from Debian's packages alone, for machines that reach no
// image registry.
func (s storage) debian(ctx context.Context, name, arch string) error {
	fmt.Println("making a base image of Debian's packages, once (about a minute)")
	root, err := os.MkdirTemp(s.dir, "debootstrap-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(root) }()
	if err := run(ctx, "debootstrap", "--variant=minbase", "--arch="+arch, "bookworm", root); err != nil {
		return err
	}
	if err := slim(root); err != nil {
		return err
	}
	out, err := s.command(ctx, "from", "scratch").Output()
	if err != nil {
		return fmt.Errorf("buildah from scratch: %w", err)
	}
	box := strings.TrimSpace(string(out))
	defer func() { _ = s.run(ctx, "rm", box) }()
	for _, args := range [][]string{
		{"add", "-q", box, root, "/"},
		{"config", "--arch", arch, "--cmd", "bash", box},
		{"commit", "-q", box, name},
	} {
		if err := s.run(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// slim removes what the slim images leave out, and tells dpkg to keep it out.
func slim(root string) error {
	var conf strings.Builder
	for _, dir := range []string{"doc", "info", "lintian", "linda", "locale", "man", "groff"} {
		fmt.Fprintf(&conf, "path-exclude /usr/share/%s/*\n", dir)
		if err := os.RemoveAll(filepath.Join(root, "usr/share", dir)); err != nil {
			return err
		}
	}
	for _, dir := range []string{"var/cache/apt/archives", "var/lib/apt/lists"} {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(root, "etc/dpkg/dpkg.cfg.d/slim"), []byte(conf.String()), 0o644)
}
