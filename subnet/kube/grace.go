package kube

import (
	"time"

	"github.com/weft-cni/weft/subnet"
)

// Grace is how long a Node that turned bad keeps its last good entry: long enough for its agent to write its
// annotations anew, short enough that an address that went to somebody else is not used for long.
const Grace = 5 * time.Minute

// Kept is the last good entry of a Node and since when the Node has been bad; zero while it is good.
type Kept struct {
	Peer     subnet.Peer
	BadSince time.Time
}

// Memory is the last good entries by Node name.
type Memory map[string]Kept

// Remember makes a memory of peers that were good when they were written down, such as those of a kept snapshot.
func Remember(peers []subnet.Peer) Memory {
	m := Memory{}
	for _, p := range peers {
		m[p.Name] = Kept{Peer: p}
	}
	return m
}

// recall fills the bad halves of a claim from its last good entry, if that is of the same Node and not too old. It
// returns what to remember and, when something was filled in, the moment at which it is no longer so.
func recall(c Claim, old Kept, now time.Time) (subnet.Peer, Kept, time.Time) {
	peer := c.Peer
	if c.Bad == [2]bool{} {
		return peer, Kept{Peer: peer}, time.Time{}
	}
	keep := Kept{Peer: peer, BadSince: now}
	if old.Peer.UID != peer.UID {
		return peer, keep, time.Time{}
	}
	if !old.BadSince.IsZero() {
		keep.BadSince = old.BadSince
	}
	until := keep.BadSince.Add(Grace)
	filled := false
	for _, f := range subnet.Families() {
		if !c.Bad[f] || old.Peer.Endpoints[f].IsZero() {
			continue
		}
		keep.Peer.Endpoints[f], keep.Peer.WGPorts[f] = old.Peer.Endpoints[f], old.Peer.WGPorts[f]
		filled = true
	}
	if c.Peer.Endpoints == [2]subnet.Endpoint{} { // then what the claim says for both means nothing either
		endpoints := keep.Peer.Endpoints
		keep.Peer = old.Peer
		keep.Peer.Created, keep.Peer.Endpoints = peer.Created, endpoints
	}
	if !filled || !now.Before(until) {
		return peer, keep, time.Time{}
	}
	return keep.Peer, keep, until
}
