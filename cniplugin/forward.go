package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// forward switches forwarding on in the families of the bridge's addresses, unless it is on, as it is where the agent runs.
func (g gateway) forward() error {
	var errs []error
	for _, p := range g.addrs {
		f := subnet.FamilyOf(p.Addr())
		path := [2]string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"}[f]
		b, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(b)) == "1" {
			continue
		}
		if f == subnet.IPv6 {
			keepRouters(g.bridge)
		}
		if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("switch %s forwarding on: %w", f, err))
		}
	}
	return errors.Join(errs...)
}

// keepRouters has interfaces that listen to router advertisements go on to do so when the host becomes a router itself: the
// kernel drops the default routes that it learned, at once and for good, unless accept_ra is 2.
// https://docs.kernel.org/networking/ip-sysctl.html
func keepRouters(bridge string) {
	files, _ := filepath.Glob("/proc/sys/net/ipv6/conf/*/accept_ra") // the pattern is good
	for _, file := range files {
		switch filepath.Base(filepath.Dir(file)) {
		case "all", "default", "lo", bridge:
			continue
		}
		if b, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(b)) == "1" {
			_ = os.WriteFile(file, []byte("2"), 0o644) // it goes away, or cannot be helped
		}
	}
}
