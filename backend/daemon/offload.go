package daemon

import (
	"fmt"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/underlay"
	"github.com/weft-cni/weft/subnet"
)

// softChecksum decides who computes the checksums of inner packets: the network card, or, where that is known to corrupt them,
// the kernel. The reason is for the log.
//
// The kernel's own fault, behind the stalls of 1, 3, 7 and 63 seconds, was that translating a packet twice wrote a checksum
// into UDP headers that had none. It is gone since Linux 5.7, our rules translate no packet that kube-proxy has marked, and
// older kernels are refused by name. Two causes are left:
//   - VMware's vmxnet3 computes wrong checksums of encapsulated packets in some versions of the hypervisor,
//     https://github.com/projectcalico/calico/issues/4727
//   - a NAT between the nodes meets UDP checksums that are to be completed by a card that is not there,
//     https://github.com/flannel-io/flannel/pull/1929
func softChecksum(choice subnet.Offload, under [2]underlay.Underlay, host kernel.Host) (soft bool, why string) {
	switch choice {
	case subnet.OffloadOff:
		return true, "net-conf.json says so"
	case subnet.OffloadOn:
		return false, ""
	}
	for _, u := range under {
		if u.Addr.IsValid() && u.Announced != u.Addr {
			return true, fmt.Sprintf("peers reach us by %s, and %s has %s: there is a NAT in between", u.Announced, u.Link, u.Addr)
		}
		for _, l := range host.Links {
			if l.Index == u.Index && u.Addr.IsValid() && l.Driver == "vmxnet3" {
				return true, fmt.Sprintf("the driver of %s is vmxnet3, which gets them wrong under some versions of its hypervisor", l.Name)
			}
		}
	}
	return false, ""
}
