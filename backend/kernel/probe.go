package kernel

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Support says what a probe found out.
type Support uint8

// What a probe can find out.
const (
	CannotTell Support = iota
	Supported
	NotSupported
)

// String is the finding in words.
func (s Support) String() string {
	return [...]string{"cannot tell", "supported", "not supported"}[s]
}

// Feature is a feature of the kernel that weft uses or could use.
type Feature struct {
	Name    string
	Support Support
	Err     error // what the kernel answered, unless it is there
}

// rtmGetNexthop is RTM_GETNEXTHOP of linux/rtnetlink.h.
const rtmGetNexthop = 106

// Probe asks the running kernel for its features, instead of guessing from its version: distributions backport, and
// leave modules out. Nothing is made or changed: a question that a kernel with the feature refuses for another reason
// than one without it is as good as a trial. Kinds of device beyond VXLAN are asked for by name only, since the question
// loads the kind's module, and some modules come with a device.
func (c *Conn) Probe(ctx context.Context, kinds ...string) []Feature {
	type probe struct {
		name string
		ask  func() error
		yes  error // the refusal that only a kernel with the feature gives
	}
	probes := []probe{
		{KindVXLAN, func() error { return c.askKind(KindVXLAN, nl.IFLA_VXLAN_ID, nl.Uint32Attr(1<<24)) }, unix.ERANGE}, // a VNI of 25 bits
		{"nexthop objects", c.askNexthops, nil},
	}
	for _, kind := range kinds {
		ask := func() error { return c.askKind(kind, nl.IFLA_IPTUN_PROTO, nl.Uint8Attr(noProtocol)) }
		switch kind {
		case KindWireGuard:
			probes = append(probes, probe{kind, c.askWireGuard, nil})
		case KindIPIP, KindIP6Tnl:
			probes = append(probes, probe{kind, ask, unix.EINVAL})
		}
	}
	var found []Feature
	for _, p := range probes {
		err := ctx.Err()
		if err == nil {
			err = p.ask()
		}
		found = append(found, finding(p.name, err, p.yes))
	}
	return found
}

func finding(name string, err, yes error) Feature {
	switch {
	case err == nil || yes != nil && errors.Is(err, yes):
		return Feature{Name: name, Support: Supported}
	case errors.Is(err, unix.EOPNOTSUPP):
		return Feature{Name: name, Support: NotSupported, Err: err}
	}
	return Feature{Name: name, Support: CannotTell, Err: err}
}

// noProtocol is the number of ICMP, which no tunnel carries.
const noProtocol = 1

// askKind asks for a device of a kind with a property that it cannot have. The module, loaded by the kernel if need be, says so.
func (c *Conn) askKind(kind string, property int, value []byte) error {
	req := c.request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(kind))
	info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(property, value)
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// askWireGuard asks for the netlink family that comes with the module.
func (c *Conn) askWireGuard() error {
	_, err := c.genericFamily(unix.WG_GENL_NAME)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", unix.EOPNOTSUPP, err)
	}
	return err
}

// askNexthops lists the nexthop objects.
func (c *Conn) askNexthops() error {
	req := c.request(rtmGetNexthop, unix.NLM_F_DUMP)
	req.AddRawData(make([]byte, 8)) // struct nhmsg
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
