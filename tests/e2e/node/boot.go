package node

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// prepare does what a boot does between the mounts and the first service.
func prepare(spec Spec) error {
	if err := unix.Sethostname([]byte(spec.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	files := map[string]string{
		"/etc/hostname":    spec.Name + "\n",
		"/etc/resolv.conf": "nameserver " + spec.DNS + "\n",
		"/etc/hosts":       "127.0.0.1 localhost\n::1 localhost\n",
		"/etc/machine-id":  machineID(spec.Name) + "\n",
	}
	for name, text := range files {
		if err := writeFile(name, text); err != nil {
			return err
		}
	}
	if err := shieldTunables(); err != nil {
		return err
	}
	return setSysctls()
}

// setSysctls: what kubeadm's documentation tells an administrator to set on every node. They belong to the network
// namespace, so the host's own stay as they are.
func setSysctls() error {
	for _, name := range []string{
		"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables",
	} {
		if err := os.WriteFile("/proc/sys/"+name, []byte("1"), 0o644); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// shieldTunables hides the kernel-wide settings that a kubelet insists on: it finds files that already say what it wants,
// and the machine's own settings stay untouched.
func shieldTunables() error {
	tunables := map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	}
	for name, value := range tunables {
		shield := filepath.Join("/run/tunables", name)
		if err := writeFile(shield, value+"\n"); err != nil {
			return err
		}
		if err := unix.Mount(shield, "/proc/sys/"+name, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("shield %s: %w", name, err)
		}
	}
	return nil
}

// machineID is the same at each boot of a node and differs between nodes.
func machineID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}

func writeFile(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("make the folder of %s: %w", name, err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
