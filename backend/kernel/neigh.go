package kernel

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
)

// neighMsg is a neighbour (family AF_INET, AF_INET6) or a VXLAN forwarding entry (AF_BRIDGE) as rtnetlink carries it.
// The library has the same but without the UDP port of a forwarding entry, which is what lets peers on two ports
// live in one network.
type neighMsg struct {
	family uint8
	index  int
	state  uint16
	mac    subnet.MAC
	dst    netip.Addr
	port   uint16
}

// attribute numbers of struct ndmsg, from linux/neighbour.h.
const (
	ndaDst    = 1
	ndaLLAddr = 2
	ndaPort   = 6
)

// listNeighs reads the neighbour table of a family, as far as it belongs to our devices.
func (c *Conn) listNeighs(family uint8, names map[int]string) ([]neighMsg, error) {
	req := c.request(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
	req.AddData(&netlink.Ndmsg{Family: family})
	var entries []neighMsg
	err := req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH, func(b []byte) bool {
		e, ok := parseNeigh(b, names)
		if ok && e.family == family {
			entries = append(entries, e)
		}
		return true
	})
	return entries, err
}

// parseNeigh reads one message; it looks at the attributes only when the entry is on one of the devices.
func parseNeigh(b []byte, names map[int]string) (neighMsg, bool) {
	if len(b) < unix.SizeofNdMsg {
		return neighMsg{}, false
	}
	e := neighMsg{
		family: b[0],
		index:  int(int32(binary.NativeEndian.Uint32(b[4:]))),
		state:  binary.NativeEndian.Uint16(b[8:]),
	}
	if _, ours := names[e.index]; !ours {
		return e, false
	}
	attrs, err := nl.ParseRouteAttr(b[unix.SizeofNdMsg:])
	if err != nil {
		return e, false
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case ndaDst:
			e.dst = addrOf(a.Value)
		case ndaLLAddr:
			e.mac = macOf(a.Value)
		case ndaPort:
			e.port = binary.BigEndian.Uint16(a.Value)
		}
	}
	return e, true
}

// send executes RTM_NEWNEIGH or RTM_DELNEIGH for an entry.
func (c *Conn) sendNeigh(proto, flags int, e neighMsg) error {
	req := c.request(proto, flags|unix.NLM_F_ACK)
	header := &netlink.Ndmsg{Family: e.family, Index: uint32(e.index), State: e.state}
	if e.family == unix.AF_BRIDGE {
		header.Flags = unix.NTF_SELF
	}
	req.AddData(header)
	if e.dst.IsValid() {
		req.AddData(nl.NewRtAttr(ndaDst, e.dst.AsSlice()))
	}
	if e.family == unix.AF_BRIDGE || !e.mac.IsZero() {
		req.AddData(nl.NewRtAttr(ndaLLAddr, e.mac[:]))
	}
	if e.port != 0 {
		req.AddData(nl.NewRtAttr(ndaPort, nl.BEUint16Attr(e.port)))
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
