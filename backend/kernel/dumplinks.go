package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
)

// ourLinks lists our devices alone: those with fixed names one by one, and those of VXLAN by their kind. None of these
// questions is ever interrupted: while thousands of other links come and go, a list of all of them has no end.
func (c *Conn) ourLinks() ([]netlink.Link, error) {
	links, err := c.vxlans()
	if err != nil {
		return nil, err
	}
	for _, f := range subnet.Families() {
		for _, name := range []string{WireGuardName(f), TunnelName(f)} {
			link, err := c.handle.LinkByName(name)
			switch err = notFound(err); {
			case err == nil:
				links = append(links, link)
			case !errors.Is(err, unix.ENODEV):
				return nil, err
			}
		}
	}
	return links, nil
}

// vxlans lists the VXLAN devices. These are few, so that the kernel tells them in one piece. It is not asked for devices of
// other kinds this way: one that does not know a kind, because the module is not loaded, tells all devices.
func (c *Conn) vxlans() ([]netlink.Link, error) {
	req := c.request(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	req.AddData(info)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	var links []netlink.Link
	for _, m := range msgs {
		link, err := netlink.LinkDeserialize(nil, m)
		if err != nil {
			return nil, fmt.Errorf("read a link: %w", err)
		}
		if link.Type() == "vxlan" { // a kernel that knows no such filter tells all
			links = append(links, link)
		}
	}
	return links, nil
}
