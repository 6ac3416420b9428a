package traffic

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/netfilter"
)

// firewall looks for base chains of others that stop what they do not know. No accept of ours overrides them, in whatever
// table and at whatever priority: an accept ends one base chain, a drop ends the packet. So they are named, with the cure.
type firewall struct {
	seen  string // the tables at the last look; empty when they were not all read
	found trouble
	stale atomic.Bool // a table of others has changed since; Watch says so
}

// trouble is what others' nftables tables do to us.
type trouble struct {
	texts   []string // chains that stop us, with the cure
	tracked bool     // a rule lets the overlay through by "ct state new" alone, as wantsTracking has it
}

// look reads the suspects again when a table came, went or has changed, and as long as there is something to be cured.
func (w *firewall) look(ctx context.Context, n *nft, c Config, tables map[string]bool) (trouble, error) {
	suspects := slices.DeleteFunc(slices.Sorted(maps.Keys(tables)), func(name string) bool { return !suspect(name, c) })
	// Whether the port or the network changed matters as much as the tables.
	seen := fmt.Sprint(suspects, c.Nets, c.Port, c.Listens, c.IPIP)
	if stale := w.stale.Swap(false); !stale && seen == w.seen && len(w.found.texts) == 0 && !w.found.tracked {
		return trouble{}, nil
	}
	var found trouble
	for _, name := range suspects {
		t, err := lookAt(ctx, n.host, name, c)
		if ctx.Err() != nil {
			w.stale.Store(true)
			return trouble{}, ctx.Err()
		}
		if err != nil { // no reason for a node without rules: nobody knows what else people put there
			t.texts = []string{fmt.Sprintf("table %s cannot be read, so it is not known whether it stops pods or peers: %v", name, err)}
		}
		found.texts = append(found.texts, t.texts...)
		found.tracked = found.tracked || t.tracked
	}
	w.seen, w.found = seen, found
	return found, nil
}

// lookAt reads one table of others. One that has gone meanwhile stops nobody.
func lookAt(ctx context.Context, h host, name string, c Config) (trouble, error) {
	family, table, _ := strings.Cut(name, " ")
	text, err := h.List(ctx, "table", family, table)
	if err != nil || text == "" {
		return trouble{}, err
	}
	return tableTrouble(text, name, c)
}

// hear notes a change of others that may stop us: firewalld that is loaded again, or a policy that becomes drop. Elements of
// sets, which come and go by the hour, stop nobody.
func (w *firewall) hear(c netfilter.Change) {
	structure := slices.Contains([]uint16{
		unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE,
	}, c.Kind)
	if c.Lost || !c.End && structure && mayStop(c.Table) {
		w.stale.Store(true)
	}
}

// suspect tells whether a table of a family in use may stop pod traffic without being meant to.
func suspect(name string, c Config) bool {
	proto, _, _ := strings.Cut(name, " ")
	rows := families()
	inUse := slices.ContainsFunc(rows[:], func(f family) bool { return f.Proto == proto && c.enabled(f.Family) })
	return (proto == "inet" || inUse) && mayStop(name)
}

// mayStop leaves out our tables, a policy engine's, kube-proxy's, and those of iptables, which have a look of their own.
func mayStop(name string) bool {
	proto, table, _ := strings.Cut(name, " ")
	if proto != "inet" && slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, table) {
		return false
	}
	return !slices.ContainsFunc([]string{TableName, "kube-", "calico", "cali-", "antrea", "cilium", "flannel-"}, func(prefix string) bool {
		return strings.HasPrefix(table, prefix)
	})
}

var (
	prefixInListing = regexp.MustCompile(`"prefix":\s*\{"addr":\s*"([^"]+)",\s*"len":\s*(\d+)\}`)
	numberInListing = regexp.MustCompile(`\b\d+\b`)
	rangeInListing  = regexp.MustCompile(`"range":\s*\[(\d+),\s*(\d+)\]`)
)

// mentionsPort tells whether a listing has the port, by itself or within a range.
func mentionsPort(listing string, port uint16) bool {
	for _, m := range rangeInListing.FindAllStringSubmatch(listing, -1) {
		if inPorts(m[1]+"-"+m[2], "-", port) {
			return true
		}
	}
	return slices.Contains(numberInListing.FindAllString(listing, -1), fmt.Sprint(port))
}

// acceptsNew tells whether a rule accepts UDP to the port, or to any, by "ct state new" alone.
func acceptsNew(rule string, port uint16) bool {
	has := func(word string) bool { return strings.Contains(rule, `"`+word+`"`) }
	return port != 0 && has("accept") && has("state") && has("new") && !has("untracked") && !has("tcp") &&
		(mentionsPort(rule, port) || !has("dport"))
}

// forwardCure names the command that lets the pod networks through a chain, for each network that it does not know yet.
func forwardCure(name, chain, mentions string, c Config) []string {
	var texts []string
	for _, f := range families() {
		n := c.Nets[f.Family].Network
		if !n.IsValid() || knows(mentions, n) {
			continue
		}
		cure := fmt.Sprintf("nft insert rule %s %s %s daddr %s accept; nft insert rule %s %s %s saddr %s accept", name, chain, f.Proto, n, name, chain, f.Proto, n)
		if name == "inet firewalld" {
			cure = fmt.Sprintf("firewall-cmd --permanent --zone=trusted --add-source=%s && firewall-cmd --reload", n)
		}
		texts = append(texts, fmt.Sprintf("table %s, chain %s stops forwarded packets of %s, and no other table can override that: %s", name, chain, n, cure))
	}
	return texts
}

// gateCures names the command that lets peers' packets in, or ours out, for each way in which they go and that the chain stops.
func gateCures(t nftTable, name, chain string, c Config) []string {
	var texts []string
	for _, f := range families() {
		if proto, _, _ := strings.Cut(name, " "); proto != "inet" && proto != f.Proto {
			continue
		}
		for _, a := range c.arrivals(f) {
			if !t.stops(chain, a) {
				continue
			}
			cure := fmt.Sprintf("nft insert rule %s %s %s accept", name, chain, a.nft)
			so := "no peer can reach this node"
			switch {
			case t.chains[chain].hook == "output":
				so = "this node can reach no peer"
			case name == "inet firewalld":
				cure = fmt.Sprintf("firewall-cmd --permanent %s && firewall-cmd --reload", a.firewall)
			}
			if text := fmt.Sprintf("table %s, chain %s stops packets to %s, so %s: %s", name, chain, a.what, so, cure); !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
		}
	}
	return texts
}

// knows tells whether a listing names a prefix that covers the network: then the operator has dealt with it.
func knows(mentions string, n netip.Prefix) bool {
	for _, m := range prefixInListing.FindAllStringSubmatch(mentions, -1) {
		addr, err := netip.ParseAddr(m[1])
		bits, _ := strconv.Atoi(m[2])
		if err == nil && covers(netip.PrefixFrom(addr, bits), n) {
			return true
		}
	}
	return false
}
