// Package vxlan plans the VXLAN overlay: from the cluster as values to the kernel state that carries it. It is pure;
// package kernel brings the state about.
//
// Each node has one device per family, flannel.<VNI>, addressed by the first address of its pod range. Pods of a peer
// are a route via the peer's first address; that address is a permanent neighbour with the MAC of the peer's device;
// that MAC is a forwarding entry with the peer's underlay address. No packet is ever flooded, and nothing is learned.
package vxlan

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// FlannelPort is the UDP port that flannel uses unless told otherwise: the Linux kernel's own default, older than the
// assigned 4789.
const FlannelPort = 8472

// DefaultPort is the port of a new cluster, the one that IANA assigned to VXLAN (RFC 7348).
const DefaultPort = 4789

// Config is what a node knows about its own end of the overlay.
type Config struct {
	VNI      uint32
	Port     uint16 // ours, as ChoosePort says
	MTU      int    // net-conf's, of the underlay; 0 means that of the underlay devices
	GBP      bool
	Learning bool

	SoftChecksum bool // compute inner checksums in software: for NICs that get them wrong

	SilentPort uint16          // what a peer listens on that announces no port: net-conf's Port, or 0 for FlannelPort
	VTEPs      [2]VTEP         // by family; the zero value switches a family off
	Networks   [2]netip.Prefix // the pod networks
}

// VTEP is the own tunnel end point in one family.
type VTEP struct {
	PodCIDR     netip.Prefix // the own pod range
	Local       netip.Addr   // outer source address; it has to be on this host
	Parent      int          // ifindex of the underlay device
	ParentName  string       // for messages
	UnderlayMTU int          // MTU of the underlay device
	MAC         subnet.MAC   // as ChooseMAC says
}

// IsZero reports whether the family is switched off.
func (v VTEP) IsZero() bool { return v == VTEP{} }

// DeviceMTU is the MTU of a family's device: what fits into one packet of the underlay.
func (c Config) DeviceMTU(f subnet.Family) int {
	mtu := c.MTU
	if mtu == 0 {
		mtu = c.VTEPs[f].UnderlayMTU
	}
	return mtu - subnet.Overhead(subnet.VXLAN, f)
}

// LargestPacket is the size of the largest packet that a family's device sends over the underlay.
func (c Config) LargestPacket(f subnet.Family) int {
	return c.DeviceMTU(f) + subnet.Overhead(subnet.VXLAN, f)
}

// PodMTU is the MTU for pods: the smallest of the devices in use. It is 0 when no family is in use.
func (c Config) PodMTU() int {
	mtu := 0
	for _, f := range subnet.Families() {
		if d := c.DeviceMTU(f); !c.VTEPs[f].IsZero() && (mtu == 0 || d < mtu) {
			mtu = d
		}
	}
	return mtu
}

// PeerPort is the UDP port that a peer listens on.
func (c Config) PeerPort(p subnet.Peer) uint16 {
	switch {
	case p.Port != 0:
		return p.Port
	case c.SilentPort != 0:
		return c.SilentPort
	}
	return FlannelPort
}

// Validate returns everything about the backend's own settings that cannot work, each with its value, its place and its cure.
func (c Config) Validate() error {
	var errs []error
	for _, f := range subnet.Families() {
		if mac := c.VTEPs[f].MAC; !c.VTEPs[f].IsZero() && (mac.IsZero() || mac[0]&1 != 0) {
			errs = append(errs, fmt.Errorf("%s device needs a unicast MAC, not %s", f, mac))
		}
	}
	if c.VNI >= 1<<24 {
		errs = append(errs, fmt.Errorf("VNI %d in net-conf.json does not fit into 24 bits: choose one up to %d", c.VNI, 1<<24-1))
	}
	if c.Port == 0 {
		errs = append(errs, errors.New("no UDP port chosen"))
	}
	return errors.Join(errs...)
}

// Device is the name of the family's device.
func (c Config) Device(f subnet.Family) string { return kernel.DeviceName(f, c.VNI) }
