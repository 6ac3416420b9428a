package traffic

import (
	"slices"
	"strings"
)

// xtable is one table as iptables-save prints it.
type xtable struct {
	policies map[string]string // of built-in chains; "-" for the others
	rules    map[string][]xrule
	chains   []string // in the order of the listing
	foreign  bool     // holds nft rules that iptables cannot read
}

// xrule is one rule: its text after the chain's name, and what matters of it.
type xrule struct {
	spec        string
	target      string
	jumps       bool // -j, or -g when false
	conditional bool // some packets pass it by
	begins      bool // only those of connections that exist do
	comment     string
}

// parseXtable reads one table, as iptables-save or iptables -S prints it.
func parseXtable(text string) xtable {
	t := xtable{policies: map[string]string{}, rules: map[string][]xrule{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#"):
			t.foreign = t.foreign || strings.Contains(line, "incompatible")
		case strings.HasPrefix(line, ":"), strings.HasPrefix(line, "-P "), strings.HasPrefix(line, "-N "):
			for _, mark := range []string{":", "-P ", "-N "} {
				line = strings.TrimPrefix(line, mark)
			}
			words := strings.Fields(line + " -")
			t.policies[words[0]] = words[1]
			t.chains = append(t.chains, words[0])
		case strings.HasPrefix(line, "-A "):
			name, spec, _ := strings.Cut(line[len("-A "):], " ")
			t.rules[name] = append(t.rules[name], parseXrule(spec))
		}
	}
	return t
}

// parseXrule reads a rule. iptables-save prints the matches first and the target with its options last.
func parseXrule(spec string) xrule {
	r := xrule{spec: spec}
	narrow := false
	words := splitWords(spec)
	for i := 0; i < len(words); i++ {
		switch next := i + 1; {
		case next == len(words):
			r.conditional, narrow = true, true
		case words[i] == "-j" || words[i] == "-g":
			r.target, r.jumps, r.begins = words[next], words[i] == "-j", r.begins && !narrow
			return r
		case words[i] == "-m" && slices.Contains([]string{"comment", "state", "conntrack"}, words[next]):
			i++
		case words[i] == "--comment":
			r.comment = words[next]
			i++
		case words[i] == "--state" || words[i] == "--ctstate":
			r.conditional, r.begins = true, slices.Contains(strings.Split(words[next], ","), "NEW")
			i++
		default: // a negation as well
			r.conditional, narrow = true, true
		}
	}
	return r
}

// splitWords splits as a shell does with double quotes and backslashes, which is how iptables-save quotes.
func splitWords(s string) []string {
	var words []string
	var word strings.Builder
	quoted, inWord := false, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			word.WriteByte(s[i])
			inWord = true
		case c == '"':
			quoted, inWord = !quoted, true
		case c == ' ' && !quoted:
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// outcome is what a chain does to a packet that no condition matches.
type outcome int

const (
	falls   outcome = iota // comes back to the calling chain
	accepts                // ends in an accept, or leaves iptables
	stops                  // ends in a drop or a reject
)

// engines are the beginnings of chain names of policy engines: what they drop stays dropped, whatever we accept.
var engines = []string{
	"KUBE-ROUTER-", "KUBE-POD-FW-", "KUBE-NWPLCY-", "cali-", "WEAVE-NPC", "AZURE-NPM", "CILIUM_", "ANTREA-", "TRIREME-", "ROMANA-",
}

// isEngine tells whether a chain belongs to a policy engine.
func isEngine(chain string) bool {
	return slices.ContainsFunc(engines, func(prefix string) bool { return strings.HasPrefix(chain, prefix) })
}

// unmatched follows a packet that no condition matches through a chain; depth ends loops, which the kernel refuses anyway.
func (t xtable) unmatched(chain string, depth int) outcome {
	if depth == 0 {
		return falls
	}
	for _, r := range t.rules[chain] {
		if r.conditional && !r.begins {
			continue
		}
		o, ends := t.verdict(r, depth)
		if o == stops || !r.conditional && (o != falls || ends) {
			return o
		}
	}
	return falls
}

// verdict is what an unconditional rule does, and whether the chain ends with it.
func (t xtable) verdict(r xrule, depth int) (o outcome, ends bool) {
	switch r.target {
	case "DROP", "REJECT", "TARPIT":
		return stops, true
	case "ACCEPT", "NFQUEUE", "QUEUE":
		return accepts, true
	case "RETURN":
		return falls, true
	}
	if _, ours := t.policies[r.target]; !ours || isEngine(r.target) {
		return falls, false // LOG, MARK and the like go on; what an engine decides is not known here
	}
	o = t.unmatched(r.target, depth-1)
	return o, o != falls || !r.jumps
}
