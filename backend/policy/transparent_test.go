package policy_test

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// sendAs sends a datagram from an address that is not the host's.
func sendAs(src string, to netip.AddrPort, n byte) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1); err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(src).As4(), Port: 4000 + int(n)}); err != nil {
		return err
	}
	return unix.Sendto(fd, []byte("as another "+string('0'+rune(n))), 0, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
}
