package images

import (
	"path/filepath"

	"github.com/weft-cni/weft/tests/e2e/artifacts"
)

// toolsImage: agnhost is static, the rest are Debian's programs with their libraries, and busybox stands in for a
// distribution's small tools. The shell is not busybox's, which would run its own nc whatever the PATH says, and neither is
// what looks names up: a static glibc does that badly.
func toolsImage(b artifacts.Binaries) (*Image, error) {
	image := &Image{Name: Tools, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}
	tree := &image.Tree
	tree.Add(filepath.Join(b.Kubernetes, "agnhost"), "/agnhost")
	tree.Link("/agnhost-2", "agnhost")
	tree.Add(filepath.Join(b.Own, "probe"), "/usr/local/bin/probe")
	tree.Add("/bin/busybox", "/bin/busybox")
	for _, name := range busyboxTools() {
		tree.Link("/bin/"+name, "busybox")
	}
	for _, program := range []string{"/usr/bin/ping", "/usr/bin/curl", "/usr/bin/dig", "/usr/bin/nslookup", "/usr/bin/wget", "/usr/bin/iperf3", "/usr/bin/socat",
		"/usr/bin/nc.openbsd", "/bin/ss", "/bin/ip", "/bin/dash", "/bin/bash", "/usr/sbin/conntrack", "/sbin/ethtool"} {
		if err := tree.AddProgram(program); err != nil {
			return nil, err
		}
	}
	tree.Link("/bin/sh", "dash")
	tree.Link("/bin/nc", "/usr/bin/nc.openbsd")
	tree.Add("/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/certs/ca-certificates.crt")
	tree.Add("/etc/services", "/etc/services")
	tree.Text("/etc/nsswitch.conf", "hosts: files dns\n", 0o644)
	tree.Text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/:/bin/sh\n", 0o644)
	tree.Text("/etc/group", "root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n", 0o644)
	for _, dir := range []string{"/root", "/uploads", "/run", "/proc", "/sys", "/dev"} {
		tree.Folder(dir, 0o755)
	}
	tree.Folder("/tmp", 0o1777)
	return image, addNameService(tree)
}

// addNameService adds what glibc loads by itself to look names up, and no program names as its library.
func addNameService(tree *Tree) error {
	for _, pattern := range []string{"/lib/*/libnss_dns.so.2", "/lib/*/libnss_files.so.2", "/lib/*/libresolv.so.2"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, file := range files {
			if err := tree.AddProgram(file); err != nil {
				return err
			}
		}
	}
	return nil
}

func busyboxTools() []string {
	return []string{"cat", "ls", "echo", "grep", "sed", "awk", "head", "tail", "sort", "uniq", "wc", "cut", "tr", "sleep", "date",
		"env", "printf", "test", "[", "true", "false", "mkdir", "rm", "cp", "mv", "ln", "chmod", "touch", "id", "hostname", "kill", "ps",
		"seq", "timeout", "netstat", "ifconfig", "route", "dd", "md5sum", "sha256sum", "xargs", "find", "stat",
		"readlink", "basename", "dirname", "tee", "expr", "od", "arp", "traceroute", "which", "mount", "df", "du", "sync", "yes", "whoami"}
}
