package traffic

import (
	"context"
	"encoding/json"
	"errors"
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
	var errs []error
	for _, name := range suspects {
		family, table, _ := strings.Cut(name, " ")
		text, err := n.host.List(ctx, "table", family, table)
		if err != nil || text == "" {
			errs = append(errs, err)
			continue
		}
		t, err := tableTrouble(text, name, c)
		errs = append(errs, err)
		found.texts = append(found.texts, t.texts...)
		found.tracked = found.tracked || t.tracked
	}
	err := errors.Join(errs...)
	if err != nil {
		seen = ""
	}
	w.seen, w.found = seen, found
	return found, err
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
)

// tableTrouble reads one table's listing and tells which of its chains stop pods or the overlay.
func tableTrouble(listing, name string, c Config) (trouble, error) {
	hooks := map[string]string{} // chain to hook, of base chains
	closed := map[string]bool{}
	var mentions strings.Builder
	var t trouble
	err := netfilter.Objects(listing, func(kind string, o netfilter.Object) {
		switch kind {
		case "chain":
			hooks[o.Name] = o.Hook
			closed[o.Name] = o.Policy == "drop"
		case "rule":
			text := joined(o.Expr)
			mentions.WriteString(text)
			// A chain without a hook may be reached from INPUT or OUTPUT; one of another hook is not about the overlay.
			onTheWay := slices.Contains([]string{"", "input", "output"}, hooks[o.Chain])
			t.tracked = t.tracked || onTheWay && acceptsNew(text, c.Port)
			closed[o.Chain] = closed[o.Chain] || stopsAll(o.Expr)
		case "set", "map":
			mentions.WriteString(joined(o.Elem))
		}
	})
	for _, chain := range slices.Sorted(maps.Keys(hooks)) {
		switch {
		case !closed[chain]:
		case hooks[chain] == "forward":
			t.texts = append(t.texts, forwardCure(name, chain, mentions.String(), c)...)
		case hooks[chain] == "input":
			t.texts = append(t.texts, inputCures(name, chain, mentions.String(), c)...)
		}
	}
	return t, err
}

func mentionsPort(listing string, port uint16) bool {
	return slices.Contains(numberInListing.FindAllString(listing, -1), fmt.Sprint(port))
}

// acceptsNew tells whether a rule accepts UDP to the port, or to any, by "ct state new" alone.
func acceptsNew(rule string, port uint16) bool {
	has := func(word string) bool { return strings.Contains(rule, `"`+word+`"`) }
	return port != 0 && has("accept") && has("state") && has("new") && !has("untracked") && !has("tcp") &&
		(mentionsPort(rule, port) || !has("dport"))
}

// stopsAll tells whether a rule drops or rejects without a condition.
func stopsAll(expr []json.RawMessage) bool {
	stop := false
	for _, raw := range expr {
		var e map[string]json.RawMessage
		if json.Unmarshal(raw, &e) != nil {
			return false
		}
		for kind := range e {
			switch kind {
			case "drop", "reject":
				stop = true
			case "counter", "log":
			default:
				return false
			}
		}
	}
	return stop
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

// inputCures names the command that lets peers' packets in, for each way in which they come and that the chain does not know.
func inputCures(name, chain, mentions string, c Config) []string {
	var texts []string
	for _, f := range families() {
		if proto, _, _ := strings.Cut(name, " "); proto != "inet" && proto != f.Proto {
			continue
		}
		for _, a := range c.arrivals(f) {
			cure := fmt.Sprintf("nft insert rule %s %s %s accept", name, chain, a.nft)
			if name == "inet firewalld" {
				cure = fmt.Sprintf("firewall-cmd --permanent %s && firewall-cmd --reload", a.firewall)
			}
			text := fmt.Sprintf("table %s, chain %s stops packets to %s, so no peer can reach this node: %s", name, chain, a.what, cure)
			if !a.inListing(mentions) && !slices.Contains(texts, text) {
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

func joined(parts []json.RawMessage) string {
	var b strings.Builder
	for _, p := range parts {
		b.Write(p)
	}
	return b.String()
}
