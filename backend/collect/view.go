package collect

import (
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet/ipam"
)

// view is the node as one pass sees it. Deciding on it touches nothing.
type view struct {
	now      time.Time
	boot     boot
	network  string
	cidrs    []netip.Prefix
	netnsDir string
	foreign  bool // reservations are not to be seen

	pods         kernel.Pods
	reservations []ipam.Reservation
	results      []ipam.Result
	unreadable   []string // cached results that say nothing
	records      []ipam.Entry
	recordTypes  map[string]recordInfo // by record name
}

type recordInfo struct {
	network, delegate, ipam string
	broken                  bool
}

// fate is what is known of an attachment.
type fate int

const (
	unheard fate = iota // the runtime has no result of it: it never had one, or lost it
	alive
	dead
	unseen // the runtime keeps its namespace where we cannot look
)

// fateOf judges an attachment by the namespace that the runtime noted for it.
func (v view) fateOf(o ipam.Owner) fate {
	worst := unheard
	for _, r := range v.results {
		if r.Network != v.network || !o.Covers(r.Owner) {
			continue
		}
		switch f := v.fateOfResult(r); f {
		case alive:
			return alive
		case unseen:
			worst = unseen
		case dead, unheard:
			if worst == unheard {
				worst = f
			}
		}
	}
	return worst
}

func (v view) fateOfResult(r ipam.Result) fate {
	if v.boot.earlier(r.ModTime) {
		return dead // no namespace outlives its boot
	}
	name, ours := v.nameInDir(r.Netns)
	switch {
	case !ours || !v.pods.DirSeen:
		return unseen
	case v.spaceOf(name) != nil:
		return alive
	case slices.ContainsFunc(v.pods.Names, func(n string) bool { return n == name }):
		return unseen // the file is there, what is behind it is not seen
	}
	return dead
}

// nameInDir gives the file name of a namespace, if it lies in the folder that we see. Runtimes write /var/run, which
// is a link to /run, or what a container has mounted there.
func (v view) nameInDir(path string) (string, bool) {
	dir := filepath.Dir(path)
	return filepath.Base(path), path != "" && slices.Contains([]string{v.netnsDir, "/run/netns", "/var/run/netns"}, dir)
}

func (v view) spaceOf(name string) *kernel.Space {
	for i, s := range v.pods.Spaces {
		if slices.Contains(s.Files, name) {
			return &v.pods.Spaces[i]
		}
	}
	return nil
}

// lives reports whether an address is seen in a namespace or on the host.
func (v view) lives(a netip.Addr) bool {
	return slices.Contains(v.pods.Host, a) || slices.ContainsFunc(v.pods.Spaces, func(s kernel.Space) bool { return slices.Contains(s.Addrs, a) })
}

// complete reports whether an address that is not seen does not live: every namespace that can be named was read.
func (v view) complete() bool { return v.pods.DirSeen && len(v.pods.Blind) == 0 }
