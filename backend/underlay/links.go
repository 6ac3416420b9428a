package underlay

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/weft-cni/weft/backend/kernel"
)

// ownDevice matches the devices that this kind of overlay makes, ours and flannel's, for all its backends.
var ownDevice = regexp.MustCompile(`^(flannel(-v6)?(\.[0-9]+|\.ipip|-old)|flannel-wg(-v6)?|flannel[0-9]+)$`)

// podBridge is the name of the bridge that the CNI plugin puts the pods on.
const podBridge = "cni0"

// barred says why a device can carry no tunnel, whoever asks for it: a tunnel through itself, or through the pods
// that it serves, goes nowhere.
func (v view) barred(l kernel.HostLink) error {
	switch {
	case ownDevice.MatchString(l.Name):
		return fmt.Errorf("%s is a tunnel device of this overlay", l.Name)
	case l.Loopback:
		return fmt.Errorf("%s is the loopback", l.Name)
	case l.Name == podBridge:
		return fmt.Errorf("%s is the bridge of the pods", l.Name)
	case l.Kind == "bridge" && v.servesPods(l):
		return fmt.Errorf("%s is a bridge with an address in the pod network", l.Name)
	}
	return nil
}

// unlikely says why nobody can mean a device who did not name it: it is down, or it is one of the bridges with which
// container and VM runtimes (docker0, virbr0, lxcbr0, ...) serve their guests. Those have no port to the outside;
// names would be a list without end.
func (v view) unlikely(l kernel.HostLink) error {
	switch {
	case !l.Up:
		return fmt.Errorf("%s is down", l.Name)
	case l.Kind == "bridge" && !v.hasUplink(l):
		return fmt.Errorf("%s is a bridge without an uplink", l.Name)
	}
	return nil
}

func (v view) servesPods(l kernel.HostLink) bool {
	return slices.ContainsFunc(v.host.Addrs, func(a kernel.HostAddr) bool {
		_, pod := v.podNetwork(a.Prefix.Addr())
		return a.Index == l.Index && pod
	})
}

// hasUplink reports whether a bridge has a port that is not a guest's: containers come on veths, VMs on taps.
func (v view) hasUplink(bridge kernel.HostLink) bool {
	return slices.ContainsFunc(v.links, func(port kernel.HostLink) bool {
		return port.Master == bridge.Index && port.Kind != "veth" && port.Kind != "tun"
	})
}

func (v view) link(index int) (kernel.HostLink, bool) {
	i := slices.IndexFunc(v.links, func(l kernel.HostLink) bool { return l.Index == index })
	if i < 0 {
		return kernel.HostLink{}, false
	}
	return v.links[i], true
}
