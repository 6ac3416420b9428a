package kernel

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
)

// wgDevice is what generic netlink tells of a WireGuard device.
type wgDevice struct {
	key   subnet.Secret
	port  uint16
	mark  uint32
	peers map[subnet.Key]*wgPeer
}

// wgPeer is a peer as the kernel tells of it.
type wgPeer struct {
	value     WGPeer
	handshake time.Time // zero when there was none
	sent      uint64    // bytes
}

// nested marks an attribute that holds others; the kernel insists on the mark in newer families.
func nested(kind int) int { return kind | unix.NLA_F_NESTED }

// add reads one message of a device's dump. A device with many peers comes in several, and so may a single peer: its second
// part has the key and further ranges only.
func (d *wgDevice) add(body []byte) error {
	attrs, err := nl.ParseRouteAttr(body)
	if err != nil {
		return err
	}
	for _, a := range attrs {
		switch a.Attr.Type & nl.NLA_TYPE_MASK {
		case unix.WGDEVICE_A_PRIVATE_KEY:
			copy(d.key[:], a.Value)
		case unix.WGDEVICE_A_LISTEN_PORT:
			d.port = binary.NativeEndian.Uint16(a.Value)
		case unix.WGDEVICE_A_FWMARK:
			d.mark = binary.NativeEndian.Uint32(a.Value)
		case unix.WGDEVICE_A_PEERS:
			peers, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return err
			}
			for _, p := range peers {
				if err := d.addPeer(p.Value); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (d *wgDevice) addPeer(body []byte) error {
	attrs, err := nl.ParseRouteAttr(body)
	if err != nil {
		return err
	}
	peer := &wgPeer{}
	for _, a := range attrs {
		switch a.Attr.Type & nl.NLA_TYPE_MASK {
		case unix.WGPEER_A_PUBLIC_KEY:
			var key subnet.Key
			copy(key[:], a.Value)
			if first, ok := d.peers[key]; ok {
				peer = first
			}
			d.peers[key] = peer
		case unix.WGPEER_A_PRESHARED_KEY:
			copy(peer.value.PSK[:], a.Value)
		case unix.WGPEER_A_ENDPOINT:
			peer.value.Endpoint = parseSockaddr(a.Value)
		case unix.WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL:
			peer.value.Keepalive = time.Duration(binary.NativeEndian.Uint16(a.Value)) * time.Second
		case unix.WGPEER_A_LAST_HANDSHAKE_TIME:
			peer.handshake = parseTime(a.Value)
		case unix.WGPEER_A_TX_BYTES:
			peer.sent = binary.NativeEndian.Uint64(a.Value)
		case unix.WGPEER_A_ALLOWEDIPS:
			if err := peer.value.addAllowed(a.Value); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *WGPeer) addAllowed(body []byte) error {
	ranges, err := nl.ParseRouteAttr(body)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		attrs, err := nl.ParseRouteAttrAsMap(r.Value)
		if err != nil {
			return err
		}
		mask := attrs[unix.WGALLOWEDIP_A_CIDR_MASK].Value
		ip, ok := netip.AddrFromSlice(attrs[unix.WGALLOWEDIP_A_IPADDR].Value)
		if !ok || len(mask) != 1 {
			return unix.EBADMSG
		}
		if f := subnet.FamilyOf(ip); p.Allowed[f].IsValid() {
			p.More++
		} else {
			p.Allowed[f] = netip.PrefixFrom(ip, int(mask[0]))
		}
	}
	return nil
}

// parseSockaddr reads struct sockaddr_in or sockaddr_in6.
func parseSockaddr(b []byte) netip.AddrPort {
	if len(b) < unix.SizeofSockaddrInet4 {
		return netip.AddrPort{}
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch {
	case binary.NativeEndian.Uint16(b) == unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case len(b) >= unix.SizeofSockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])).Unmap(), port)
	}
	return netip.AddrPort{}
}

// sockaddr is what parseSockaddr reads.
func sockaddr(a netip.AddrPort) []byte {
	var b bytes.Buffer
	put := func(order binary.ByteOrder, v any) { _ = binary.Write(&b, order, v) } // a buffer takes everything
	put(binary.NativeEndian, uint16(family(a.Addr())))
	put(binary.BigEndian, a.Port())
	if a.Addr().Is4() {
		b.Write(a.Addr().AsSlice())
		b.Write(make([]byte, unix.SizeofSockaddrInet4-b.Len()))
		return b.Bytes()
	}
	put(binary.BigEndian, uint32(0)) // flow label
	b.Write(a.Addr().AsSlice())
	put(binary.BigEndian, uint32(0)) // scope
	return b.Bytes()
}

// parseTime reads struct __kernel_timespec; all zero means never.
func parseTime(b []byte) time.Time {
	if len(b) < 16 {
		return time.Time{}
	}
	seconds, nanos := int64(binary.NativeEndian.Uint64(b)), int64(binary.NativeEndian.Uint64(b[8:]))
	if seconds == 0 && nanos == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, nanos)
}

// allowedMsg is the attribute with the ranges of a peer.
func allowedMsg(ranges []netip.Prefix) *nl.RtAttr {
	all := nl.NewRtAttr(nested(unix.WGPEER_A_ALLOWEDIPS), nil)
	for _, r := range ranges {
		one := all.AddRtAttr(nested(0), nil)
		one.AddRtAttr(unix.WGALLOWEDIP_A_FAMILY, nl.Uint16Attr(uint16(family(r.Addr()))))
		one.AddRtAttr(unix.WGALLOWEDIP_A_IPADDR, r.Addr().AsSlice())
		one.AddRtAttr(unix.WGALLOWEDIP_A_CIDR_MASK, nl.Uint8Attr(uint8(r.Bits())))
	}
	return all
}

// peerMsg starts the message of one peer.
func peerMsg(key subnet.Key, flags uint32) *nl.RtAttr {
	peer := nl.NewRtAttr(nested(0), nil)
	peer.AddRtAttr(unix.WGPEER_A_PUBLIC_KEY, key[:])
	if flags != 0 {
		peer.AddRtAttr(unix.WGPEER_A_FLAGS, nl.Uint32Attr(flags))
	}
	return peer
}
