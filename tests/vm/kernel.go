package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// meta is the Debian package that always depends on the newest kernel. The flavour made for clouds has every module that is
// needed here and is a third of the other's size.
const meta = "linux-image-cloud-amd64"

// debian is a kernel of Debian, unpacked in the cache and not installed on this machine.
type debian struct {
	image   string // path of vmlinuz
	version string // as uname -r says
	modules string // path of lib/modules/<version>
}

// Cache is the folder of kernels and images: in WEFT_CACHE, else in the user's cache.
func Cache() (string, error) {
	cache := os.Getenv("WEFT_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		cache = filepath.Join(user, "weft")
	}
	return filepath.Join(cache, "vm"), nil
}

// Kernel is the version of the machine's kernel, as uname -r prints it there. It is downloaded if the cache lacks it.
func Kernel(ctx context.Context, cache string) (string, error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	k, err := fetch(ctx, cache)
	return k.version, err
}

// fetch downloads the kernel, unless the cache holds that version.
func fetch(ctx context.Context, cache string) (debian, error) {
	r, err := chosen(ctx, cache)
	if err != nil {
		return debian{}, err
	}
	name, err := r.newest(ctx)
	if err != nil {
		return debian{}, err
	}
	dir := filepath.Join(cache, name)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := r.unpack(ctx, name, dir); err != nil {
			return debian{}, err
		}
	}
	version := strings.TrimPrefix(name, "linux-image-")
	return debian{
		image: filepath.Join(dir, "boot", "vmlinuz-"+version), version: version, modules: filepath.Join(dir, "lib", "modules", version),
	}, nil
}

// newest is the name of the kernel's package; its number moves with each security update.
func (r release) newest(ctx context.Context) (string, error) {
	show := func() ([]byte, error) { return r.command(ctx, "apt-cache", "show", meta).Output() }
	out, err := show()
	if err != nil { // a machine whose lists were never fetched, or have been cleaned away
		if text, err := r.command(ctx, "apt-get", "update", "-qq").CombinedOutput(); err != nil {
			return "", fmt.Errorf("fetch the lists of packages: %w: %s", err, text)
		}
		out, err = show()
	}
	if err != nil {
		return "", fmt.Errorf("ask apt for %s: %w", meta, err)
	}
	m := regexp.MustCompile(`(?m)^Depends:.*?(linux-image-[0-9][^ ,]*)`).FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("the package %s names no kernel", meta)
	}
	return string(m[1]), nil
}

func (r release) unpack(ctx context.Context, name, dir string) error {
	work, err := os.MkdirTemp(filepath.Dir(dir), "fetch-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	root := filepath.Join(work, "root")
	get := r.command(ctx, "apt-get", "download", "-q", name)
	get.Dir = work
	if out, err := get.CombinedOutput(); err != nil {
		return fmt.Errorf("download %s: %w: %s", name, err, out)
	}
	debs, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("download %s: %d files came", name, len(debs))
	}
	for _, script := range []string{
		"dpkg -x " + quote(debs[0]) + " " + quote(root),
		"cd " + quote(root) + " && { test -e lib || ln -s usr/lib lib; }",                          // newer releases have /usr/lib alone
		"cd " + quote(root) + " && find . -name '*.ko.xz' -exec busybox unxz {} +",                 // and modules that are compressed
		"busybox depmod -b " + quote(root) + " " + quote(strings.TrimPrefix(name, "linux-image-")), // none brings its list of dependencies
	} {
		if out, err := exec.CommandContext(ctx, "sh", "-c", script).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", script, err, out)
		}
	}
	return os.Rename(root, dir)
}
