package artifacts

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
)

// debianPackages maps a package to a file whose absence means it must be installed.
func debianPackages() map[string]string {
	return map[string]string{
		"busybox-static":  "/bin/busybox",
		"conntrack":       "/usr/sbin/conntrack",
		"curl":            "/usr/bin/curl",
		"bind9-dnsutils":  "/usr/bin/dig",
		"ethtool":         "/usr/sbin/ethtool",
		"gcc":             "/usr/bin/gcc",
		"iperf3":          "/usr/bin/iperf3",
		"ipset":           "/usr/sbin/ipset",
		"iptables":        "/usr/sbin/iptables",
		"iproute2":        "/usr/sbin/tc",
		"iputils-ping":    "/usr/bin/ping",
		"libseccomp-dev":  "/usr/include/seccomp.h",
		"nftables":        "/usr/sbin/nft",
		"pkg-config":      "/usr/bin/pkg-config",
		"procps":          "/usr/bin/pkill",
		"socat":           "/usr/bin/socat",
		"tcpdump":         "/usr/bin/tcpdump",
		"netcat-openbsd":  "/usr/bin/nc.openbsd",
		"wget":            "/usr/bin/wget",
		"util-linux":      "/usr/bin/nsenter",
		"libc6-dev":       "/usr/include/stdio.h",
		"ca-certificates": "/etc/ssl/certs/ca-certificates.crt",
		"kmod":            "/usr/bin/kmod",
	}
}

// InstallPackages installs the Debian packages that are missing; on a machine that has them all it does nothing.
func InstallPackages(ctx context.Context, progress Progress) error {
	var missing []string
	for name, file := range debianPackages() {
		if _, err := os.Stat(file); err != nil {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	if len(missing) == 0 {
		return nil
	}
	return progress.Step("install Debian packages "+strings.Join(missing, " "), func() error {
		env := []string{"DEBIAN_FRONTEND=noninteractive"}
		if _, err := (Command{Env: env, Args: []string{"apt-get", "update", "-q"}}).Run(ctx); err != nil {
			return fmt.Errorf("refresh the package lists: %w", err)
		}
		args := append([]string{"apt-get", "install", "-q", "-y", "--no-install-recommends"}, missing...)
		_, err := Command{Env: env, Args: args}.Run(ctx)
		return err
	})
}
