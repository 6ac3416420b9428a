package main

import (
	"errors"
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// advertise sends a router advertisement (RFC 4861, 4.2) on eth0 of the calling thread's namespace: here is a router, for
// half a minute. An error may only mean that eth0 has no address yet.
func advertise() error {
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	c, err := net.ListenIP("ip6:ipv6-icmp", &net.IPAddr{IP: net.IPv6unspecified})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		optErr = errors.Join(
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255), // or it came from afar
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, eth0.Index))
	})
	if err := errors.Join(err, optErr); err != nil {
		return err
	}
	const kind, hopLimit, lifetime = 134, 64, 30
	message := []byte{kind, 0, 0, 0, hopLimit, 0, 0, lifetime, 0, 0, 0, 0, 0, 0, 0, 0}
	_, err = c.WriteToIP(message, &net.IPAddr{IP: net.IPv6linklocalallnodes, Zone: strconv.Itoa(eth0.Index)})
	return err
}
