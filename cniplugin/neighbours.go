package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/ipam"
)

// keepLiveNeighbours reserves addresses that a neighbour on the bridge uses although their reservation is lost, so that
// host-local does not hand them out a second time. Only a neighbour whose MAC the bridge has learned on a port counts:
// the entry of a pod that is gone stays in the kernel's table, but not in the bridge. That one is taken away, or the next
// pod with its address would be sent to by its MAC. This sees pods that talked within the last minutes; the agent, which
// sees into the namespaces, mends the rest and finds the owners.
func keepLiveNeighbours(ctx context.Context, c rtnl, bridgeName string, store ipam.Store, subnets []netip.Prefix) error {
	dev, err := openDevice(bridgeName)
	if err != nil {
		return nil // it is made later
	}
	defer dev.close()
	neighbours := map[netip.Addr][6]byte{}
	for _, p := range subnets {
		if err := c.neighbours(dev.index, subnet.FamilyOf(p.Addr()), neighbours); err != nil {
			return fmt.Errorf("read the neighbours on %s: %w", bridgeName, err)
		}
	}
	var learned map[[6]byte]bool
	for addr, mac := range neighbours {
		if !inAny(subnets, addr) || store.Has(addr) {
			continue
		}
		if learned == nil {
			learned = learnedMACs(bridgeName)
		}
		if !learned[mac] {
			err = c.delNeighbour(dev.index, addr)
		} else {
			err = store.Update(ctx, func(tx ipam.Tx) error {
				_, err := tx.Reserve(addr, ipam.Recovered())
				return err
			})
		}
		if err != nil {
			return fmt.Errorf("look after %s, which is known on %s without a reservation: %w", addr, bridgeName, err)
		}
	}
	return nil
}

// forget takes away what the host knows of neighbours that a new pod has the addresses of. Packets that were sent before it
// had them wait there until somebody answers for the address: they passed the rules for forwarded packets when no policy
// and no gate knew it, and would be the first that the pod gets. And what the pod of before had as its MAC is no longer true;
// in IPv6 nobody would say so.
func (b bridge) forget(addrs []netip.Addr) error {
	dev, err := openDevice(b.name)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("forget the neighbours %v: %w", addrs, err)
	}
	defer dev.close()
	c, err := openRtnl()
	if err != nil {
		return fmt.Errorf("forget the neighbours %v: %w", addrs, err)
	}
	defer c.Close()
	for _, a := range addrs {
		if err := c.delNeighbour(dev.index, a); err != nil {
			return fmt.Errorf("forget the neighbour %s: %w", a, err)
		}
	}
	return nil
}

func inAny(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// learnedMACs reads what a bridge learned on its ports (struct __fdb_entry in linux/if_bridge.h, 16 bytes each: MAC,
// port, is_local, age in 1/100 s, ...).
func learnedMACs(bridgeName string) map[[6]byte]bool {
	const size, ageing = 16, 300 * 100
	out := map[[6]byte]bool{}
	b, err := os.ReadFile("/sys/class/net/" + bridgeName + "/brforward")
	if err != nil {
		return out
	}
	for ; len(b) >= size; b = b[size:] {
		if isLocal := b[7] != 0; !isLocal && binary.NativeEndian.Uint32(b[8:]) <= ageing {
			out[[6]byte(b[:6])] = true
		}
	}
	return out
}
