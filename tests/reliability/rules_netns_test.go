package reliability

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// firewallRows belong to the group "kernel": what others do to rules and to connection tracking.
func firewallRows() []Fault {
	const (
		open = "rules that drop were in force until ours were there again"
		nat  = "the Service's address is translated by rules that were flushed, too"
		leak = "new connections are not masqueraded until the rules are there again"
	)
	flushed := script("nft flush ruleset", "flush ruleset\n")
	flushed.Loses, flushed.Leaks, flushed.Worst = nat+"; "+leak, leak, true
	deleted := script("table inet weft deleted", "delete table inet weft\n")
	deleted.Loses, deleted.Leaks = leak, leak
	emptied := script("table inet weft emptied", "flush table inet weft\n")
	emptied.Loses, emptied.Leaks = leak, leak
	before := script("a rule put before ours, in our own chain", "insert rule inet weft postrouting counter accept\n")
	before.Loses, before.Leaks = leak, leak
	added := script("a chain put into our table", "add chain inet weft stranger\nadd rule inet weft stranger counter\n")
	reload := Fault{
		Name: "a firewall reloads: all rules flushed, its own restored", Note: "iptables-restore, FORWARD drops", Loses: nat + "; " + open, Leaks: leak,
		Do: func(b *Bench) error {
			if err := nft(b, "flush ruleset\n"); err != nil {
				return err
			}
			err := b.inEach(func(f subnet.Family) error {
				_, err := b.Nodes[0].NS.Input(reloaded, wordsFor(f).iptables+"-nft-restore")
				return err
			})
			b.Damaged()
			return err
		},
		Healed: opened("nft"), After: closed("nft"),
	}
	return []Fault{
		flushed, deleted, emptied, before, added, reload,
		forward("iptables (nft): FORWARD set to DROP", "nft", "-P FORWARD DROP"),
		forward("iptables (nft): FORWARD ends in REJECT", "nft", "-A FORWARD -j REJECT"),
		forward("iptables (legacy): FORWARD set to DROP", "legacy", "-P FORWARD DROP"),
		forward("iptables (nft): FORWARD flushed while it drops", "nft", "-P FORWARD DROP", "-F FORWARD"),
		{
			Name: "connection tracking full", Long: true, Note: "as many connections as the kernel tracks; the tunnels are not tracked",
			Loses: "the kernel drops what would need a new entry; connections that stand, and the tunnels, go on",
			Do:    fillConntrack, After: func(b *Bench) error {
				_, err := b.Nodes[0].NS.Try("conntrack", "-D", "-f", wordsFor(b.Lane.First()).sysctl, "-d", crowded(b.Lane.First(), 9, 9))
				return err
			},
		},
	}
}

// reloaded is what a firewall restores at a reload: it knows nothing of us, and drops what it does not know.
const reloaded = `*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
`

// script is a fault that an nft script makes.
func script(name, text string) Fault {
	return Fault{Name: name, Rules: true, Do: func(b *Bench) error { return nft(b, text) }}
}

func nft(b *Bench, text string) error {
	_, err := b.Nodes[0].NS.Input(text, "nft", "-f", "-")
	b.Damaged()
	return err
}

// forward is a FORWARD chain that stops everything, in iptables of the given flavour. It has healed when a new connection from
// another node's pod is let in, which the traffic's losses show, too.
func forward(name, flavour string, rules ...string) Fault {
	return Fault{
		Name: name, Loses: "what is sent before our jump is there is dropped",
		Do: func(b *Bench) error {
			var commands []string
			for _, r := range rules {
				commands = append(commands, "{iptables}-"+flavour+" "+r)
			}
			return b.Hurt(b.Nodes[0], commands...)
		},
		Healed: opened(flavour), After: closed(flavour),
	}
}

// opened tells whether a FORWARD chain lets pods through: by a jump of ours that comes before what stops everything.
func opened(flavour string) func(*Bench) error {
	return func(b *Bench) error {
		err := b.inEach(func(f subnet.Family) error {
			text, err := b.Nodes[0].NS.Try(wordsFor(f).iptables+"-"+flavour, "-S", "FORWARD")
			if err != nil {
				return err
			}
			before, _, _ := strings.Cut(text, "-j REJECT")
			if !strings.Contains(before, "-A FORWARD -m comment") {
				return fmt.Errorf("FORWARD is not opened:\n%s", text)
			}
			return nil
		})
		if err != nil {
			return err
		}
		return b.Restored()
	}
}

// closed takes an operator's rules away again.
func closed(flavour string) func(*Bench) error {
	return func(b *Bench) error {
		program := "{iptables}-" + flavour
		return b.on(b.Nodes[0], program+" -P FORWARD ACCEPT", program+" -F FORWARD")
	}
}

// fillConntrack puts connections into the first node's table until it is full, and a second passes. They are assured ones:
// others would make room for new connections.
func fillConntrack(b *Bench) error {
	n := b.Nodes[0]
	limit, err := n.number("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		return err
	}
	f := b.Lane.First() // there is one table for both
	var script strings.Builder
	for i := range limit {
		fmt.Fprintf(&script, "-I -s %s -d %s -p tcp --sport %d --dport 80 --state ESTABLISHED -t 600 -u SEEN_REPLY,ASSURED\n",
			crowded(f, i>>14, 1), crowded(f, 9, 9), 1024+i&0x3fff)
	}
	_, _ = n.NS.Input(script.String(), "conntrack", "-R", "-") // ends with an error when the table is full
	count, err := n.number("/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		return err
	}
	if count < limit*99/100 {
		return fmt.Errorf("connection tracking has %d of %d entries: it is not full", count, limit)
	}
	time.Sleep(time.Second)
	return nil
}

// crowded is an address of those that fill the table.
func crowded(f subnet.Family, a, b int) string {
	return fmt.Sprintf([2]string{"10.9.%d.%d", "fd00:9::%d:%d"}[f], a, b)
}

// number reads a file of /proc in the node's namespace.
func (n *Node) number(file string) (int, error) {
	text, err := n.NS.Try("cat", file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(text))
}
