package vxlan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// ChoosePort decides the own UDP port, once at start, from what is known by then, in this order: net-conf's Port, the
// port of the device that is there, our own announcement, what most peers use, and the assigned port for a new
// cluster. A 0 stands for "not known". The second value says why, for the log.
//
// A managed peer that announces no port is flannel. So a node that joins a running flannel cluster speaks its port,
// a node that is migrated keeps its own, and a new cluster starts with 4789.
func ChoosePort(netconf, device, own uint16, peers []subnet.Peer) (port uint16, why string) {
	switch {
	case netconf != 0:
		return netconf, "net-conf.json says so"
	case device != 0:
		return device, "the device that is there has it"
	case own != 0:
		return own, "this node announced it before"
	}
	votes := map[uint16]int{}
	for _, p := range peers {
		if p.BackendType == "vxlan" {
			votes[Config{}.PeerPort(p)]++
		}
	}
	if len(votes) == 0 {
		return DefaultPort, "it is the assigned one, and no peer has another"
	}
	ports := slices.Sorted(maps.Keys(votes))
	best := slices.MaxFunc(ports, func(a, b uint16) int { return cmp.Compare(votes[a], votes[b]) }) // the lowest of equals
	return best, fmt.Sprintf("%d of %d peers use it", votes[best], len(peers))
}

// ChooseMAC decides the MAC of a device: that of the device which is there, else the one that was announced before,
// so that no peer has to learn anything, else a new one. Random fills a slice with random bytes.
func ChooseMAC(device, announced subnet.MAC, random func([]byte)) subnet.MAC {
	if !device.IsZero() {
		return device
	}
	if !announced.IsZero() {
		return announced
	}
	var m subnet.MAC
	random(m[:])
	m[0] = m[0]&^1 | 2 // unicast, locally administered
	return m
}
