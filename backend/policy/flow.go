package policy

import (
	"fmt"
	"net/netip"
)

// Flow is a connection, or a lone packet that could begin one, as our hooks see it: behind the translation of its
// destination, before that of its source.
type Flow struct {
	Src, Dst         netip.Addr
	Proto            Proto // any IP protocol; ports mean something for TCP, UDP and SCTP only
	SrcPort, DstPort uint16
}

// reversed is the flow of the answers.
func (f Flow) reversed() Flow {
	return Flow{Src: f.Dst, Dst: f.Src, Proto: f.Proto, SrcPort: f.DstPort, DstPort: f.SrcPort}
}

// String is "10.244.1.5:40000 > 10.244.2.7:53/udp".
func (f Flow) String() string {
	proto := f.Proto.String()
	if f.Proto == 1 || f.Proto == 58 {
		return fmt.Sprintf("%s > %s/icmp", f.Src, f.Dst)
	}
	return fmt.Sprintf("%s > %s/%s", netip.AddrPortFrom(f.Src, f.SrcPort), netip.AddrPortFrom(f.Dst, f.DstPort), proto)
}
