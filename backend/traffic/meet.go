package traffic

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// fit is whether a rule of iptables is about the overlay's packets.
type fit int

const (
	never   fit = iota
	perhaps     // it depends on the peer or the device, which the operator has meant to say something by
	always
)

// meet follows the overlay's packets through a chain: it tells what becomes of them, and which rule stops them. A rule that may
// let them in is believed to; one that may stop them is not.
func (t xtable) meet(chain string, a arrival, depth int) (outcome, string) {
	for i, r := range t.rules[chain] {
		m := a.fits(r.spec)
		switch {
		case m == never || depth == 0:
			continue
		case r.target == "ACCEPT":
			return accepts, ""
		}
		var o outcome
		by := ""
		if _, known := t.policies[r.target]; known && !strings.HasPrefix(r.target, "KUBE-") && !isEngine(r.target) {
			o, by = t.meet(r.target, a, depth-1)
		} else if o, _ = t.verdict(r, depth); o == stops {
			by = fmt.Sprintf("rule %d of %s (%s)", i+1, chain, r.spec)
		}
		switch {
		case o == accepts, o == stops && m == always:
			return o, by
		case m == always && (r.target == "RETURN" || r.target != "" && !r.jumps):
			return falls, ""
		}
	}
	return falls, ""
}

// fits tells whether a rule is about packets that come, or go, this way.
func (a arrival) fits(spec string) fit {
	words := splitWords(spec)
	m := always
	for i := 0; i < len(words); i++ {
		value := ""
		if i+1 < len(words) {
			value = words[i+1]
		}
		not := i > 0 && words[i-1] == "!"
		switch w := words[i]; w {
		case "-j", "-g":
			return m
		case "!":
		case "-m":
			if !slices.Contains([]string{"comment", "udp", "multiport", "state", "conntrack"}, value) {
				m = min(m, a.other(value))
			}
			i++
		case "--comment":
			i++
		case "-p":
			if a.isProtocol(value) == not {
				return never
			}
			i++
		case "--dport", "--dports":
			if a.isPort(value) == not {
				return never
			}
			i++
		case "--state", "--ctstate":
			if m = min(m, perhaps); !takesNew(value, not) {
				return never
			}
			i++
		case "-s":
			if m = min(m, perhaps); !not && a.stranger(value) {
				return never
			}
			i++
		case "-i", "-o":
			if m = min(m, perhaps); value == "lo" && !not {
				return never
			}
			i++
		default:
			if m = min(m, perhaps); slices.Contains([]string{"--sport", "--sports", "--icmp-type"}, w) {
				return never
			}
		}
	}
	return m
}

// other is what a match says of which only the name is known: some are about the peers, the others are not thought to let any in.
func (a arrival) other(match string) fit {
	if slices.Contains([]string{"set", "mac", "addrtype", "iprange", "physdev", "pkttype"}, match) {
		return perhaps
	}
	return never
}

// stranger tells whether a source is no peer's, as far as peers are known.
func (a arrival) stranger(source string) bool {
	p, err := netip.ParsePrefix(source)
	return err == nil && len(a.peers) > 0 && !slices.ContainsFunc(a.peers, p.Contains)
}

func (a arrival) isProtocol(word string) bool {
	if word == "all" || word == "0" {
		return true
	}
	return a.port != 0 && (word == "udp" || word == "17") || slices.Contains(a.names, word)
}

func (a arrival) isPort(list string) bool {
	return a.port != 0 && slices.ContainsFunc(strings.Split(list, ","), func(ports string) bool { return inPorts(ports, ":", a.port) })
}

// inPorts tells whether a port, or a range of them, holds one.
func inPorts(ports, dash string, port uint16) bool {
	var from, to int
	if n, _ := fmt.Sscanf(strings.Replace(ports, dash, " ", 1), "%d %d", &from, &to); n == 1 {
		to = from
	}
	return from <= int(port) && int(port) <= to
}

// takesNew tells whether packets that are not tracked, or that begin something, are among the states of a list.
func takesNew(states string, not bool) bool {
	list := strings.Split(states, ",")
	if not {
		return !slices.Contains(list, "NEW") && !slices.Contains(list, "UNTRACKED")
	}
	return slices.Contains(list, "NEW") || slices.Contains(list, "UNTRACKED")
}
