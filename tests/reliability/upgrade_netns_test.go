package reliability

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/tests/lane"
)

// upgradeRows are changes that somebody means: another version, another configuration.
func upgradeRows() []Fault {
	const device = "a device has to be made anew, and the others learn of it"
	return []Fault{
		{Name: "another version and back, node by node", Worst: true, Heal: 10 * time.Second,
			Note: "another build, and rules as another version writes them: other chains, sets and hashes", Before: buildNext, Do: upgradeAndBack},
		{Name: "another Port, node by node", Alone: true, Heal: 10 * time.Second, Worst: true,
			Note: "the old port is heard until the new device hears both", Before: watchTheClear, Do: changePort, Healed: otherPortEverywhere},
		// A second of all that a node sends and gets is 400 datagrams here, and the connections besides.
		{Name: "another VNI, everywhere at once", Alone: true, Heal: 10 * time.Second, Loses: "no packet passes between two VNIs", Most: 3 * 440,
			Before: watchTheClear, Do: changeVNI, Healed: otherVNIEverywhere},
		{Name: "GBP turned on or off, node by node", Alone: true, Heal: 10 * time.Second, Loses: device, Most: 3 * 440,
			Before: watchTheClear, Do: changeGBP, Healed: otherGBPEverywhere},
		{Name: "another underlay device", Alone: true, Heal: 10 * time.Second, Loses: device, Most: 440,
			Before: secondNIC, Do: changeUnderlay, Healed: otherUnderlay},
	}
}

// next is the program of another version.
func next(b *Bench) string { return filepath.Join(filepath.Dir(b.Daemon), "flanneld-next") }

func buildNext(b *Bench) error {
	cmd := exec.Command("go", "build", "-ldflags", "-X main.release=v9.9.9 -X main.commit=another", "-o", next(b), ".")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the next version: %w: %s", err, out)
	}
	return nil
}

// upgradeAndBack rolls the next version out, and the present one again. In between each node has rules as the version before
// would have written them.
func upgradeAndBack(b *Bench) error {
	for _, program := range []string{next(b), b.Daemon} {
		for _, n := range b.Nodes {
			if _, err := n.Agent.Terminate(); err != nil {
				return err
			}
			if err := rulesOfAnotherVersion(n); err != nil {
				return err
			}
			if err := n.Agent.Start(Options{Program: program}); err != nil {
				return err
			}
			if _, err := await(func() error { return errors.Join(n.Agent.Ready(), b.Right(n)) }, patience); err != nil {
				return err
			}
			said := n.Agent.Tail()
			if program == next(b) && !strings.Contains(said, "version=v9.9.9") {
				return fmt.Errorf("%s does not run the next version:\n%s", n.Name, said)
			}
		}
	}
	return nil
}

// rulesOfAnotherVersion writes our table as another version might: the same verdicts by a chain of another name, with one more
// chain and set, and with other hashes.
func rulesOfAnotherVersion(n *Node) error {
	text, err := n.NS.Try("nft", "--stateless", "list", "table", "inet", "weft")
	if err != nil {
		return err
	}
	text = regexp.MustCompile(`#[0-9a-f]{8}"`).ReplaceAllString(text, `#00c0ffee"`)
	text = strings.Replace(text, "chain postrouting {", "chain translate {", 1)
	end := strings.LastIndex(text, "}")
	text = text[:end] + `	set novelty {
		type ipv4_addr . inet_service
		elements = { 192.0.2.1 . 80 }
	}
	chain novelty {
		comment "of another version"
		type filter hook forward priority filter + 5; policy accept;
		ip daddr . tcp dport @novelty counter drop
	}
}
`
	_, err = n.NS.Input("table inet weft\ndelete table inet weft\n"+text, "nft", "-f", "-")
	return err
}

// watchTheClear counts on the router what pods send to pods without a tunnel: it would take the default route.
func watchTheClear(b *Bench) error {
	rules := ""
	for _, f := range b.Lane.Families() {
		rules += strings.NewReplacer("{nft}", wordsFor(f).nft, "{network}", lane.Network(f).String()).Replace("\n\t\t{nft} saddr {network} {nft} daddr {network} counter")
	}
	_, err := b.Router.Input(`table inet bench-clear
delete table inet bench-clear
table inet bench-clear {
	chain prerouting {
		type filter hook prerouting priority raw`+rules+`
	}
}
`, "nft", "-f", "-")
	return err
}

// changePort rolls another port out. The other agents stand still while a node changes, so that their nodes go on sending to
// the old port for a while.
func changePort(b *Bench) error {
	port := uint16(4790)
	if b.Nodes[0].Port == port {
		port = 8472
	}
	conf := b.Lane.NetConf(fmt.Sprintf(`{"Type": "vxlan", "Port": %d}`, port))
	for _, n := range b.Nodes {
		if err := signalOthers(b, n, syscall.SIGSTOP); err != nil {
			return err
		}
		if _, err := n.Agent.Terminate(); err != nil {
			return err
		}
		if err := n.Agent.Start(Options{NetConf: conf}); err != nil {
			return err
		}
		n.Port = port
		_, err := await(func() error { return errors.Join(n.Agent.Ready(), n.onlyOn(b, port)) }, patience)
		if err != nil {
			return err
		}
		time.Sleep(around)
		if err := signalOthers(b, n, syscall.SIGCONT); err != nil {
			return err
		}
		if _, err := await(func() error { return otherPortEverywhere(b) }, patience); err != nil {
			return err
		}
	}
	return nil
}

func signalOthers(b *Bench, but *Node, s syscall.Signal) error {
	var errs []error
	for _, n := range b.Nodes {
		if n != but {
			errs = append(errs, n.Agent.Signal(s))
		}
	}
	return errors.Join(errs...)
}

// onlyOn wants one device in each family, on that port: the one before has gone.
func (n *Node) onlyOn(b *Bench, port uint16) error {
	have, err := n.Dump()
	if err != nil {
		return err
	}
	for _, f := range b.Lane.Families() {
		if l := have.Links[device(f)]; len(have.Links) != len(b.Lane.Families()) || l.Port != port {
			return fmt.Errorf("%s has\n%s", n.Name, have)
		}
	}
	return nil
}

// otherPortEverywhere: the rules depend on which ports there were, so they are not compared.
func otherPortEverywhere(b *Bench) error {
	for _, n := range b.Nodes {
		n.rules = ""
	}
	return errors.Join(b.Restored(), nothingInTheClear(b))
}

// setConf writes net-conf.json under the eyes of the agent, which takes it within a second.
func setConf(b *Bench, n *Node, backend string) error {
	text := b.Lane.NetConf(fmt.Sprintf(`{"Type": "vxlan", %s}`, backend))
	return os.WriteFile(n.Path("net-conf.json"), []byte(text), 0o600)
}

// has wants of a node that it is whole, with one device in each family and a route to each other node, and an agent that is
// ready, and one property of its devices.
func has[T comparable](b *Bench, n *Node, property func(kernel.Link) T, want T) error {
	have, err := n.Dump()
	if err != nil {
		return err
	}
	families := len(b.Lane.Families())
	if len(have.Links) != families || len(have.Routes) != families*(len(b.Nodes)-1) {
		return fmt.Errorf("%s has\n%s", n.Name, have)
	}
	for name, l := range have.Links {
		if property(l) != want {
			return fmt.Errorf("%s has %v, not %v, on %s", n.Name, property(l), want, name)
		}
	}
	return n.Agent.Ready()
}

// everywhere asks all nodes for one property of their devices, which has to be the same.
func everywhere[T comparable](b *Bench, property func(kernel.Link) T, want T) error {
	for _, n := range b.Nodes {
		if err := has(b, n, property, want); err != nil {
			return err
		}
	}
	return nothingInTheClear(b)
}

func vniOf(l kernel.Link) uint32 { return l.VNI }
func gbpOf(l kernel.Link) bool   { return l.GBP }

// wants says whether a node's net-conf.json has a text in it: which way the last run went.
func wants(n *Node, text string) bool {
	data, err := os.ReadFile(n.Path("net-conf.json"))
	return err == nil && strings.Contains(string(data), text)
}

func changeVNI(b *Bench) error {
	backend := `"VNI": 7`
	if wants(b.Nodes[0], backend) {
		backend = `"VNI": 1`
	}
	for _, n := range b.Nodes {
		if err := setConf(b, n, backend); err != nil {
			return err
		}
	}
	return nil
}

func otherVNIEverywhere(b *Bench) error {
	want := uint32(1)
	if wants(b.Nodes[0], `"VNI": 7`) {
		want = 7
	}
	return everywhere(b, vniOf, want)
}

func changeGBP(b *Bench) error {
	on := !wants(b.Nodes[0], `"GBP": true`)
	for _, n := range b.Nodes {
		if err := setConf(b, n, fmt.Sprintf(`"GBP": %t`, on)); err != nil {
			return err
		}
		_, err := await(func() error { return has(b, n, gbpOf, on) }, patience)
		if err != nil {
			return err
		}
	}
	return nil
}

func otherGBPEverywhere(b *Bench) error {
	return everywhere(b, gbpOf, wants(b.Nodes[0], `"GBP": true`))
}

// secondNIC gives the first node another way to the others.
func secondNIC(b *Bench) error {
	n := b.Nodes[0]
	b.Fabric.Attach(n.NS, "eth1", "second")
	for _, f := range b.Lane.Families() {
		n.NS.IP(fmt.Sprintf("addr add %s/%d dev eth1", otherAddr(n.Ends[f].IP), wordsFor(f).bits))
	}
	return watchTheClear(b)
}

// otherAddr is a second address of a node, and of that the first.
func otherAddr(a netip.Addr) netip.Addr {
	raw := a.AsSlice()
	raw[len(raw)-1] ^= 0x80
	other, _ := netip.AddrFromSlice(raw)
	return other
}

// changeUnderlay starts the agent of the first node on its other NIC.
func changeUnderlay(b *Bench) error {
	n := b.Nodes[0]
	if _, err := n.Agent.Terminate(); err != nil {
		return err
	}
	nics := []string{"eth0", "eth1"}
	n.Link = nics[1-slices.Index(nics, n.Link)]
	for _, f := range b.Lane.Families() {
		n.Ends[f].IP = otherAddr(n.Ends[f].IP)
	}
	if err := n.Agent.Start(Options{}); err != nil {
		return err
	}
	_, err := await(func() error {
		have, err := n.Dump()
		for _, f := range b.Lane.Families() {
			if have.Links[device(f)].Local != n.Ends[f].IP {
				err = errors.Join(err, errNotYet)
			}
		}
		return err
	}, patience)
	b.Damaged() // an agent that starts has done nothing yet
	return err
}

func otherUnderlay(b *Bench) error { return errors.Join(b.Restored(), nothingInTheClear(b)) }
