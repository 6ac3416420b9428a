package kernel

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// checksumFeature is the offload that some NICs, virtual ones and NATs get wrong for packets inside of packets: the
// receiver then drops them for a bad checksum. With it switched off on our device the kernel computes inner checksums
// itself (`ethtool -K flannel.1 tx-checksum-ip-generic off`).
const checksumFeature = "tx-checksum-ip-generic"

// ethtoolOmitReply is ETHTOOL_FLAG_OMIT_REPLY of linux/ethtool_netlink.h: an acknowledgement is answer enough.
const ethtoolOmitReply = 1 << 1

// softChecksum reads whether the offload is off on a device. A kernel that cannot tell has it on.
func (c *Conn) softChecksum(index int) bool {
	req, err := c.ethtool(unix.ETHTOOL_MSG_FEATURES_GET, 0, index, 0)
	if err != nil {
		return false
	}
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil || len(msgs) == 0 || len(msgs[0]) < nl.SizeofGenlmsg {
		return false
	}
	active, ok := attribute(msgs[0][nl.SizeofGenlmsg:], unix.ETHTOOL_A_FEATURES_ACTIVE)
	if !ok {
		return false
	}
	bits, _ := attribute(active, unix.ETHTOOL_A_BITSET_BITS) // no bits at all: everything is off
	attrs, err := nl.ParseRouteAttr(bits)
	if err != nil {
		return false
	}
	for _, bit := range attrs {
		name, _ := attribute(bit.Value, unix.ETHTOOL_A_BITSET_BIT_NAME)
		if unix.ByteSliceToString(name) == checksumFeature {
			return false // listed are the features that are on
		}
	}
	return true
}

// setSoftChecksum switches the offload off, or on again.
func (c *Conn) setSoftChecksum(index int, soft bool) error {
	req, err := c.ethtool(unix.ETHTOOL_MSG_FEATURES_SET, unix.NLM_F_ACK, index, ethtoolOmitReply)
	if err != nil {
		return err
	}
	wanted := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_WANTED|unix.NLA_F_NESTED, nil)
	bit := wanted.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS|unix.NLA_F_NESTED, nil).AddRtAttr(unix.ETHTOOL_A_BITSET_BITS_BIT|unix.NLA_F_NESTED, nil)
	bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_NAME, nl.ZeroTerminated(checksumFeature))
	if !soft {
		bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_VALUE, nil)
	}
	req.AddData(wanted)
	_, err = req.Execute(unix.NETLINK_GENERIC, 0)
	return err
}

// ethtool starts a message about a device.
func (c *Conn) ethtool(command uint8, flags, index int, headerFlags uint32) (*nl.NetlinkRequest, error) {
	family, err := c.genericFamily("ethtool")
	if err != nil {
		return nil, fmt.Errorf("find ethtool's netlink family: %w", err)
	}
	req := c.genericRequest(family, flags, command)
	header := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_HEADER|unix.NLA_F_NESTED, nil)
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_INDEX, nl.Uint32Attr(uint32(index)))
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_FLAGS, nl.Uint32Attr(headerFlags))
	req.AddData(header)
	return req, nil
}

// genericHeader is struct genlmsghdr. The library's type for it holds two of the four bytes, and sends whatever lies
// behind them in memory.
type genericHeader [4]byte

// Len is the number of bytes.
func (h genericHeader) Len() int { return len(h) }

// Serialize is the header as it is sent.
func (h genericHeader) Serialize() []byte { return h[:] }

// genericRequest starts a message of generic netlink.
func (c *Conn) genericRequest(family, flags int, command uint8) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(family, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_GENERIC: c.generic}
	req.AddData(genericHeader{command, genericVersion})
	return req
}

// genericVersion is the version of both families that we speak.
const genericVersion = 1

// genericFamily asks for the number of a family, which differs from boot to boot.
func (c *Conn) genericFamily(name string) (int, error) {
	req := c.genericRequest(unix.GENL_ID_CTRL, 0, unix.CTRL_CMD_GETFAMILY)
	req.AddData(nl.NewRtAttr(unix.CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated(name)))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return 0, err
	}
	if len(msgs) > 0 && len(msgs[0]) >= nl.SizeofGenlmsg {
		if id, ok := attribute(msgs[0][nl.SizeofGenlmsg:], unix.CTRL_ATTR_FAMILY_ID); ok && len(id) >= 2 {
			return int(binary.NativeEndian.Uint16(id)), nil
		}
	}
	return 0, unix.EBADMSG
}

// attribute finds one attribute of a message.
func attribute(b []byte, kind uint16) ([]byte, bool) {
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, false
	}
	for _, a := range attrs {
		if a.Attr.Type&nl.NLA_TYPE_MASK == kind {
			return a.Value, true
		}
	}
	return nil, false
}
