package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/ipam"
)

// keepLiveNeighbours reserves addresses that a neighbour on the bridge uses although their reservation is lost, so that
// host-local does not hand them out a second time. Only a neighbour whose MAC the bridge has learned on a port counts:
// the entry of a pod that is gone stays in the kernel's table, but not in the bridge. This sees pods that talked
// within the last minutes; the agent, which sees into the namespaces, mends the rest and finds the owners.
func keepLiveNeighbours(ctx context.Context, bridgeName string, store ipam.Store, subnets []netip.Prefix) error {
	neighbours, err := neighboursOn(bridgeName, subnets)
	if err != nil || len(neighbours) == 0 {
		return err
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
			continue
		}
		err := store.Update(ctx, func(tx ipam.Tx) error {
			_, err := tx.Reserve(addr, ipam.Recovered())
			return err
		})
		if err != nil {
			return fmt.Errorf("keep %s, which lives on %s without a reservation: %w", addr, bridgeName, err)
		}
	}
	return nil
}

func inAny(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// neighboursOn reads the neighbours of an interface in the families of some ranges. Without the interface there are none.
func neighboursOn(name string, ranges []netip.Prefix) (map[netip.Addr][6]byte, error) {
	dev, err := openDevice(name)
	if err != nil {
		return nil, nil
	}
	defer dev.close()
	c, err := openRtnl()
	if err != nil {
		return nil, fmt.Errorf("read the neighbours on %s: %w", name, err)
	}
	defer c.Close()
	out := map[netip.Addr][6]byte{}
	for _, p := range ranges {
		if err := c.neighbours(dev.index, subnet.FamilyOf(p.Addr()), out); err != nil {
			return nil, fmt.Errorf("read the neighbours on %s: %w", name, err)
		}
	}
	return out, nil
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
