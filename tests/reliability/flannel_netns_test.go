package reliability

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-cni/weft/tests/flannelstate"
	"github.com/weft-cni/weft/tests/lane"
)

// trip is a way from flannel to weft and back, node by node, with pods that live and traffic that flows all the time.
type trip struct {
	rules flannelstate.Rules
	port  int // of flannel's net-conf.json; 0 names none
	// natives are the last nodes of the bench: they are weft's from the start, on 4789, and stay.
	natives int
}

// migrationRows are the ways to weft and back. No packet may be lost and none translated wrongly at any moment, neither while
// half of the nodes are flannel's and half are weft's, nor while a node changes hands.
func migrationRows() []Fault {
	var rows []Fault
	for _, r := range []struct {
		name  string
		trip  trip
		worst bool
	}{
		{"flannel to weft and back, iptables-nft", trip{rules: flannelstate.IPTablesNFT}, true},
		{"flannel to weft and back, iptables-legacy", trip{rules: flannelstate.IPTablesLegacy}, false},
		{"flannel to weft and back, nftables", trip{rules: flannelstate.NFTables}, false},
		{"flannel to weft and back, Port 4789", trip{rules: flannelstate.IPTablesNFT, port: 4789}, false},
		{"flannel on 8472 beside weft on 4789: to weft and back", trip{rules: flannelstate.IPTablesNFT, natives: 2}, false},
	} {
		rows = append(rows, Fault{
			Name: r.name, Worst: r.worst, Alone: true, Heal: 10 * time.Second,
			Note:   "node by node, with `flanneld uninstall --keep-dataplane` on the way back; heals: every node is as flannel leaves it",
			Before: r.trip.begin, Do: r.trip.travel, Healed: r.trip.arrived,
		})
	}
	return rows
}

// travellers are the nodes that change hands.
func (r trip) travellers(b *Bench) []*Node { return b.Nodes[:len(b.Nodes)-r.natives] }

// flannel is a node as flannel has it.
func (r trip) flannel(n *Node) flannelstate.Node {
	var out flannelstate.Node
	for _, f := range slices.Backward(n.families()) {
		end := n.Ends[f]
		one := flannelstate.Node{
			Name: n.Name, Network: lane.Network(f), PodCIDR: end.CIDR, Underlay: n.Link, Addr: end.IP, MAC: end.MAC.String(),
			VNI: 1, Port: r.port, Rules: r.rules, Root: n.Dir,
		}
		if out.Network.IsValid() {
			also := out
			one.Also = &also
		}
		out = one
	}
	return out
}

// conf is net-conf.json, the same for both.
func (r trip) conf(l lane.Lane) string {
	backend := VXLAN
	if r.port != 0 {
		backend = fmt.Sprintf(`{"Type": "vxlan", "Port": %d}`, r.port)
	}
	mode := fmt.Sprintf(`{"EnableNFTables": %t, `, r.rules == flannelstate.NFTables)
	return strings.Replace(l.NetConf(backend), "{", mode, 1)
}

// options are how weft runs on flannel's files, as its manifest does.
func (r trip) options(b *Bench, n *Node) Options {
	f := r.flannel(n)
	return Options{NetConf: r.conf(b.Lane), Args: []string{
		"--subnet-file=" + f.Path("run/flannel/subnet.env"), "--cni-conf-dir=" + f.Path("etc/cni/net.d"),
		"--state-dir=" + f.Path("var/lib/weft"), "--cni-data-dir=" + f.Path("var/lib/cni"), "--netns-dir=/run/netns",
	}}
}

// begin makes the travellers flannel's.
func (r trip) begin(b *Bench) error {
	for _, n := range r.travellers(b) {
		n.Agent.Kill()
		if _, err := n.verb("uninstall", Options{}); err != nil {
			return err
		}
	}
	for _, n := range r.travellers(b) {
		if r.rules == flannelstate.IPTablesLegacy { // as the kubelet does: so it is known which iptables the host uses
			for _, f := range b.Lane.Families() {
				if _, err := n.NS.Try(wordsFor(f).iptables+"-legacy", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY"); err != nil {
					return err
				}
			}
		}
		if err := r.startFlannel(b, n); err != nil {
			return err
		}
		if err := r.flannel(n).Pod(podID(n), podMTU(b.Lane, n.MTU), n.PodAddrs()...); err != nil {
			return err
		}
	}
	_, err := await(b.talk, patience)
	return err
}

func podID(n *Node) string { return "0123456789abcdef-" + n.Name }

// startFlannel starts a flannel on a node, which has to take the device as it is, if there is one.
func (r trip) startFlannel(b *Bench, n *Node) error {
	var peers []flannelstate.Peer
	for _, p := range b.Nodes {
		if p != n {
			peers = append(peers, r.flannel(p).Peer())
		}
	}
	remade, err := r.flannel(n).Start(n.NS, peers...)
	if err == nil && len(remade) > 0 {
		err = fmt.Errorf("flannel on %s makes its device anew: %s", n.Name, strings.Join(remade, ", "))
	}
	if err != nil {
		return err
	}
	annotations := map[string]any{}
	for key, value := range r.flannel(n).Annotations() {
		annotations[key] = value
	}
	if n.Port != uint16(cmp.Or(r.port, flannelstate.DefaultPort)) { // it was weft's on another port before
		annotations[flannelstate.Prefix+"backend-port"] = nil
	}
	return b.annotate(n.Name, annotations)
}

// travel lets weft take over node by node, and flannel again.
func (r trip) travel(b *Bench) error {
	for _, n := range r.travellers(b) {
		if err := n.Agent.Start(r.options(b, n)); err != nil {
			return err
		}
		if _, err := await(n.Agent.Ready, patience); err != nil {
			return err
		}
		if _, err := await(func() error { return r.taken(b, n) }, patience); err != nil {
			return err
		}
	}
	for _, n := range r.travellers(b) {
		if _, err := n.Agent.Terminate(); err != nil {
			return err
		}
		for range 2 { // it is idempotent
			if _, err := n.verb("uninstall", r.options(b, n), "--keep-dataplane"); err != nil {
				return err
			}
		}
		if err := r.judge(n); err != nil {
			return fmt.Errorf("before flannel starts: %w", err)
		}
		if err := r.startFlannel(b, n); err != nil {
			return err
		}
	}
	return nil
}

// taken reports what of flannel is left on a node that weft has taken over.
func (r trip) taken(b *Bench, n *Node) error {
	have, err := n.Dump()
	if err != nil {
		return err
	}
	ours := 0
	for _, route := range have.Routes {
		if route.Ours && route.Onlink {
			ours++
		}
	}
	if ours != len(b.Lane.Families())*(len(b.Nodes)-1) {
		return fmt.Errorf("%s has %d routes of its own", n.Name, ours)
	}
	text, err := flannelstate.RulesText(n.NS)
	if err == nil && strings.Contains(strings.ToLower(text), "flannel") {
		err = fmt.Errorf("%s: rules of flannel are left:\n%s", n.Name, text)
	}
	return err
}

func (r trip) judge(n *Node) error {
	found, err := r.flannel(n).Judge(n.NS)
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("%s: %s", n.Name, strings.Join(found, "; "))
	}
	return err
}

func (r trip) arrived(b *Bench) error {
	var errs []error
	for _, n := range r.travellers(b) {
		errs = append(errs, r.judge(n))
		kept := []string{"var/lib/cni/flannel/" + podID(n)} // of a pod that lives
		for _, a := range n.PodAddrs() {
			kept = append(kept, "var/lib/cni/networks/cbr0/"+a.String())
		}
		for _, name := range kept {
			_, err := os.Stat(n.Path(name))
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// verb runs a verb of flanneld on the node, with the agent's flags.
func (n *Node) verb(verb string, o Options, args ...string) (string, error) {
	cmd := n.Agent.Command(o)
	line := append([]string{cmd.Path, verb}, args...)
	out, err := n.NS.Try(append(line, cmd.Args[1:]...)...)
	if err != nil {
		return out, fmt.Errorf("flanneld %s on %s: %w", verb, n.Name, err)
	}
	return out, nil
}

// annotate sets annotations, or with nil removes them.
func (b *Bench) annotate(node string, annotations map[string]any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = b.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}
