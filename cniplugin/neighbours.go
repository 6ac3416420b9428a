package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/weft-cni/weft/subnet/ipam"
)

// keepLiveNeighbours reserves addresses that a neighbour on the bridge uses although their reservation is lost, so that
// host-local does not hand them out a second time. Only a neighbour whose MAC the bridge has learned on a port counts:
// the entry of a pod that is gone stays in the ARP cache, but not in the bridge. This sees IPv4 pods that talked
// within the last minutes; the agent, which sees into the namespaces, mends the rest and finds the owners.
func keepLiveNeighbours(ctx context.Context, bridgeName string, store ipam.Store, subnets []netip.Prefix) error {
	neighbours := arpCache(bridgeName)
	if len(neighbours) == 0 {
		return nil
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

// arpCache reads the IPv4 neighbours of an interface (proc(5), net/arp).
func arpCache(ifName string) map[netip.Addr][6]byte {
	b, err := os.ReadFile("/proc/thread-self/net/arp")
	if err != nil {
		return nil
	}
	out := map[netip.Addr][6]byte{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 6 || f[5] != ifName {
			continue
		}
		addr, err := netip.ParseAddr(f[0])
		mac, macErr := net.ParseMAC(f[3])
		if err == nil && macErr == nil && len(mac) == 6 {
			out[addr] = [6]byte(mac)
		}
	}
	return out
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
