package traffic

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The socket families and option levels of iptables-legacy (linux/netfilter_ipv4/ip_tables.h, ..._ipv6/ip6_tables.h).
const (
	afInet    = unix.AF_INET
	afInet6   = unix.AF_INET6
	levelIP   = unix.IPPROTO_IP
	levelIPv6 = unix.IPPROTO_IPV6

	optGetInfo = 64 // IPT_SO_GET_INFO and IP6T_SO_GET_INFO
)

// legacyInfo is struct ipt_getinfo. Entries and Size change whenever a rule comes or goes.
type legacyInfo struct {
	Name      [32]byte
	Hooks     uint32
	HookEntry [5]uint32
	Underflow [5]uint32
	Entries   uint32
	Size      uint32
}

// legacySize asks the kernel for the size of an iptables-legacy table: no program, no lock, a microsecond. The legacy
// engine sends no events, so this is how a flush is noticed between two slow polls.
func legacySize(fam family, table string) (legacyInfo, error) {
	info := legacyInfo{}
	copy(info.Name[:], table)
	fd, err := unix.Socket(fam.Socket, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return info, fmt.Errorf("open a raw socket: %w", err)
	}
	defer unix.Close(fd)
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(fam.Level), optGetInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return info, fmt.Errorf("ask for the size of the %s-legacy table %s: %w", fam.Tool, table, errno)
	}
	return info, nil
}
