package kernel

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func (r *podReader) readVeths() error {
	for try := 1; ; try++ {
		req := r.request(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
		if errors.Is(err, nl.ErrDumpInterrupted) && try < 5 {
			continue
		}
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		return r.readLinks(msgs)
	}
}

func (r *podReader) readLinks(msgs [][]byte) error {
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[min(len(m), unix.SizeofIfInfomsg):])
		if err != nil {
			return fmt.Errorf("read a link: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.IFLA_LINK_NETNSID && len(a.Value) == 4 {
				if id := int(int32(nl.NativeEndian().Uint32(a.Value))); id >= 0 {
					r.space(id)
				} else {
					r.blind("a link leads to a namespace without a number")
				}
			}
		}
	}
	return nil
}

// addrs dumps the addresses of a namespace; nsidNone is the host.
func (r *podReader) addrs(id int) ([]netip.Addr, error) {
	for try := 1; ; try++ {
		req := r.request(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		req.AddData(&nl.IfAddrmsg{IfAddrmsg: unix.IfAddrmsg{Family: unix.AF_UNSPEC}})
		if id != nsidNone {
			req.AddData(nl.NewRtAttr(ifaTargetNetnsid, nl.Uint32Attr(uint32(id))))
		}
		msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
		if errors.Is(err, nl.ErrDumpInterrupted) && try < 5 {
			continue
		}
		if err != nil {
			return nil, err
		}
		return parseAddrs(msgs)
	}
}

func parseAddrs(msgs [][]byte) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[min(len(m), unix.SizeofIfAddrmsg):])
		if err != nil {
			return nil, fmt.Errorf("read an address: %w", err)
		}
		var addr netip.Addr
		for _, a := range attrs {
			// IFA_ADDRESS is the peer where there is IFA_LOCAL, and IPv6 has no IFA_LOCAL without a peer.
			if a.Attr.Type == unix.IFA_LOCAL || a.Attr.Type == unix.IFA_ADDRESS && !addr.IsValid() {
				if v, ok := netip.AddrFromSlice(a.Value); ok {
					addr = v
				}
			}
		}
		if addr.IsValid() && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
			out = append(out, addr)
		}
	}
	return out, nil
}
