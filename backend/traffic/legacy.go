package traffic

import (
	"encoding/binary"
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

	optGetInfo    = 64 // IPT_SO_GET_INFO and IP6T_SO_GET_INFO
	optGetEntries = 65 // IPT_SO_GET_ENTRIES and IP6T_SO_GET_ENTRIES
)

// What is known of struct ipt_get_entries and of an entry in it: the header's size, and where an entry says where its target
// begins (after struct ipt_ip or ip6t_ip6), and where a target has its verdict.
const (
	entriesHeader  = 40
	targetOffset   = 88
	targetOffset6  = 140
	verdictOffset  = 32
	forwardHook    = 2
	largestToWatch = 256 << 10
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

// legacyPolicy reads what FORWARD does with what no rule matches, as the kernel writes it; a change of that changes no size. A
// large table is not read, for the kernel copies all of it: there the slow poll has to do, and 0 is returned.
func legacyPolicy(fam family, info legacyInfo) (int32, error) {
	if info.Size > largestToWatch || info.Hooks&(1<<forwardHook) == 0 {
		return 0, nil
	}
	fd, err := unix.Socket(fam.Socket, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return 0, fmt.Errorf("open a raw socket: %w", err)
	}
	defer unix.Close(fd)
	buf := make([]byte, entriesHeader+info.Size)
	copy(buf, info.Name[:])
	binary.NativeEndian.PutUint32(buf[len(info.Name):], info.Size)
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(fam.Level), optGetEntries,
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("read a legacy table of %s: %w", fam.Tool, errno)
	}
	entry, where := buf[min(entriesHeader+int(info.Underflow[forwardHook]), len(buf)):], targetOffset
	if fam.Socket == afInet6 {
		where = targetOffset6
	}
	if len(entry) < where+2 {
		return 0, nil
	}
	verdict := int(binary.NativeEndian.Uint16(entry[where:])) + verdictOffset
	if len(entry) < verdict+4 {
		return 0, nil
	}
	return int32(binary.NativeEndian.Uint32(entry[verdict:])), nil
}
