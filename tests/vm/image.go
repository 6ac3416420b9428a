package vm

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	_ "embed"
)

//go:embed init.sh
var initScript string

// programs are those that tests call; each comes with its libraries. One that this machine lacks is missing there too.
func programs() []string {
	return []string{
		"dash", "ip", "bridge", "tc", "ss", "nft", "conntrack", "ipset", "ethtool", "tcpdump", "ping", "nsenter", "unshare", "setpriv", "mount", "umount",
		"iptables", "iptables-save", "iptables-restore", "iptables-nft", "iptables-nft-save", "iptables-nft-restore",
		"iptables-legacy", "iptables-legacy-save", "iptables-legacy-restore",
		"ip6tables", "ip6tables-save", "ip6tables-restore", "ip6tables-nft", "ip6tables-nft-save", "ip6tables-nft-restore",
		"ip6tables-legacy", "ip6tables-legacy-save", "ip6tables-legacy-restore",
	}
}

// applets are what busybox stands in for. ip is not among them: busybox has a smaller one of that name.
func applets() []string {
	return strings.Fields("awk cat chmod chown cp cut date depmod dd df dmesg echo env false find free grep gunzip head hostname id " +
		"insmod kill killall ln ls lsmod mkdir mknod modprobe mv pgrep pkill poweroff ps pwd readlink rm rmdir rmmod sed seq sha256sum sleep sort stat " +
		"stty sync sysctl tail tar tee test timeout touch tr true uname uniq wc which xargs yes")
}

// tables are folders and files that those programs read.
func tables() []string {
	return []string{"/usr/lib/x86_64-linux-gnu/xtables", "/etc/iproute2", "/etc/protocols", "/etc/services", "/etc/ethertypes", "/etc/nsswitch.conf",
		"/etc/passwd", "/etc/group"}
}

// base makes the part of the root file system that all runs share, unless the cache holds it, and returns its path.
func base(ctx context.Context, k debian, cache string) (string, error) {
	key, err := fingerprint(k)
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "base-"+key+".cpio")
	if _, err := os.Stat(path); err == nil || !errors.Is(err, os.ErrNotExist) {
		return path, err
	}
	work, err := os.MkdirTemp(cache, "base-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := stage(k, filepath.Join(work, "root")); err != nil {
		return "", fmt.Errorf("lay out the modules: %w", err)
	}
	depmod := exec.CommandContext(ctx, "busybox", "depmod", "-b", filepath.Join(work, "root"), k.version)
	if out, err := depmod.CombinedOutput(); err != nil {
		return "", fmt.Errorf("depmod: %w: %s", err, out)
	}
	made := filepath.Join(work, "base.cpio")
	if err := pack(ctx, made, filepath.Join(work, "root")); err != nil {
		return "", fmt.Errorf("pack the root file system: %w", err)
	}
	return path, os.Rename(made, path)
}

// fingerprint changes with whatever goes into the image.
func fingerprint(k debian) (string, error) {
	hash := sha256.New()
	_, _ = fmt.Fprintln(hash, k.version, seeds, initScript, applets())
	for _, p := range append([]string{"busybox"}, programs()...) {
		path, err := exec.LookPath(p)
		if err != nil {
			_, _ = fmt.Fprintln(hash, p, "missing")
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return "", err
		}
		_, _ = fmt.Fprintln(hash, path, info.Size(), info.ModTime().Unix())
	}
	return fmt.Sprintf("%x", hash.Sum(nil)[:6]), nil
}

func pack(ctx context.Context, to, modules string) error {
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	out := bufio.NewWriter(file)
	a := newArchive(out)
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib64"} {
		a.link(dir, "usr"+dir)
	}
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/root", "/var", "/usr/lib64"} {
		a.folder(dir)
	}
	a.entry("/init", modeFile|0o755, []byte(initScript))
	if err := fill(ctx, a, modules); err != nil {
		return err
	}
	return errors.Join(a.close(), out.Flush())
}

func fill(ctx context.Context, a *archive, modules string) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	for _, p := range append([]string{busybox}, programs()...) {
		path, err := exec.LookPath(p)
		if err != nil {
			continue // its tests will say that it is missing
		}
		if err := addProgram(ctx, a, path); err != nil {
			return err
		}
	}
	a.link("/usr/bin/sh", "dash")
	for _, name := range applets() {
		a.link("/usr/sbin/"+name, "../bin/busybox")
	}
	for _, t := range tables() {
		if err := a.tree(t); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return filepath.WalkDir(modules, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return a.as(filepath.Join("/usr", strings.TrimPrefix(name, modules)), name)
	})
}

var library = regexp.MustCompile(`(?m)(?:=> |^\s)(/\S+) \(0x`)

// addProgram copies a program and the libraries that ldd names.
func addProgram(ctx context.Context, a *archive, path string) error {
	if err := a.file(path); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "ldd", path).Output()
	if err != nil {
		return nil // a static program
	}
	for _, m := range library.FindAllStringSubmatch(string(out), -1) {
		if err := a.file(m[1]); err != nil {
			return err
		}
	}
	return nil
}
