package scenario

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/terms"
)

// Settings are the configuration of one node.
type Settings struct {
	VNI  uint32
	Port uint16
	MTU  int // of the underlay, as net-conf's MTU; 0 follows the device
	// Silent says that the port is written in net-conf.json: then peers that announce none are taken to have it, too.
	Silent bool

	Backend string // net-conf's Backend.Type; "" is vxlan
	Direct  bool   // DirectRouting
}

// kind is the backend's type.
func (s Settings) kind() string { return cmp.Or(s.Backend, subnet.VXLAN) }

// Underlay is what the model knows of a node's underlay device.
type Underlay struct {
	Device string
	MTU    int
	Addr   netip.Addr
}

// set changes a setting of the daemon.
func (m *Machine) set(key, value string, families []subnet.Family) error {
	if key == "mac" {
		for _, f := range families {
			m.mac[f] = terms.In(f, value)
		}
		return nil
	}
	switch key {
	case "backend":
		m.settings.Backend = value
		return nil
	case "direct":
		m.settings.Direct = value == "true"
		return nil
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		return err
	}
	switch key {
	case "vni":
		m.settings.VNI = uint32(n)
	case "port":
		m.settings.Port = uint16(n)
	case "mtu":
		m.settings.MTU = n
	default:
		return fmt.Errorf("%s: want backend, direct, vni, port, mtu or mac", key)
	}
	return nil
}
