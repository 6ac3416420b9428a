package reliability

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
)

// The Backend objects of net-conf.json that the bench knows in full: what they leave in the kernel is in Want.
const (
	VXLAN  = `{"Type": "vxlan"}`
	Direct = `{"Type": "vxlan", "DirectRouting": true}`
	HostGW = `{"Type": "host-gw"}`
)

// form is what a backend makes of peers on the same switch.
type form struct {
	Type          string
	DirectRouting bool
}

func formOf(backend string) (form, error) {
	var f form
	if err := json.Unmarshal([]byte(backend), &f); err != nil {
		return form{}, fmt.Errorf("read the Backend object %s: %w", backend, err)
	}
	return f, nil
}

// hasDevice reports whether there is a VXLAN device, and isDirect whether peers are reached without it.
func (f form) hasDevice() bool { return f.Type == "vxlan" }
func (f form) isDirect() bool  { return f.DirectRouting || f.Type == "host-gw" }

// modelled reports whether Want knows the backend. Of others the devices' kind is all that is looked at.
func (f form) modelled() bool { return f.Type == "vxlan" || f.Type == "host-gw" }

// RollOut takes the cluster to another Backend object, node by node: by the file that a running agent watches, or by a restart of
// the agent with the new file, as a DaemonSet does it. After each node every pod still has to reach every other one, and after
// the last one nothing may be left of the old backend: RollOut returns how long that took. A node keeps the old one for as long as
// another might still send by it.
func (b *Bench) RollOut(backend string, restart bool) (time.Duration, error) {
	b.Backend = backend
	for _, n := range b.Nodes {
		if err := b.reconfigure(n, restart); err != nil {
			return 0, err
		}
		took, err := await(func() error { return errors.Join(n.Agent.Ready(), n.runs(backend)) }, patience)
		if err != nil {
			return 0, fmt.Errorf("%s on its way to %s: %w", n.Name, backend, err)
		}
		talks, err := await(b.talk, patience)
		if err != nil {
			return 0, fmt.Errorf("when %s has %s: %w", n.Name, backend, err)
		}
		b.T.Logf("%s runs %s after %v, all talk after %v", n.Name, backend, took, talks)
	}
	took, err := await(b.arrived, patience)
	if err != nil {
		return took, fmt.Errorf("after the roll-out of %s: %w", backend, err)
	}
	b.T.Logf("nothing but %s is left after %v", backend, took)
	if f, err := formOf(backend); err != nil || f.Type == "wireguard" {
		return took, errors.Join(err, b.sealed())
	}
	return took, nil
}

// sealed wants nothing of what pods send to pods to be readable on the underlay, plain or in a tunnel that hides nothing: no frame
// has the addresses of two pods side by side. Traffic has to flow.
func (b *Bench) sealed() error {
	const enough = 100
	for _, n := range b.Nodes {
		c := n.NS.Capture(n.Link)
		_, err := await(func() error {
			if seen := len(c.Frames()); seen < enough {
				return fmt.Errorf("%d frames at %s, too few to judge by", seen, n.Name)
			}
			return nil
		}, patience)
		c.Stop()
		if err != nil {
			return err
		}
		if readable := c.Count(b.isReadable); readable > 0 {
			return fmt.Errorf("%d of %d frames at %s can be read", readable, len(c.Frames()), n.Name)
		}
	}
	return nil
}

func (b *Bench) isReadable(frame []byte) bool {
	for _, f := range b.Lane.Families() {
		for _, from := range b.Nodes {
			for _, to := range b.Nodes {
				pair := slices.Concat(from.PodIPs[f].AsSlice(), to.PodIPs[f].AsSlice())
				if from != to && bytes.Contains(frame, pair) {
					return true
				}
			}
		}
	}
	return false
}

func (b *Bench) reconfigure(n *Node, restart bool) error {
	if !restart {
		return os.WriteFile(n.Path("net-conf.json"), []byte(b.NetConf()), 0o600)
	}
	if _, err := n.Agent.Terminate(); err != nil {
		return err
	}
	return n.Agent.Start(Options{})
}

// runs wants the agent to say in its log that it plans for a backend: the last one that it named.
func (n *Node) runs(backend string) error {
	f, err := formOf(backend)
	if err != nil {
		return err
	}
	said := n.Agent.Log()
	if i := strings.LastIndex(said, `msg="network configuration"`); i >= 0 {
		line, _, _ := strings.Cut(said[i:], "\n")
		if strings.Contains(line, "Type:"+f.Type+" ") && strings.Contains(line, fmt.Sprintf("DirectRouting:%t", f.DirectRouting)) {
			return nil
		}
	}
	return fmt.Errorf("%s does not speak of %s yet: %w", n.Name, backend, errNotYet)
}

// talk wants a packet from each pod to each other to be answered, in every family.
func (b *Bench) talk() error {
	for _, f := range b.Lane.Families() {
		for _, from := range b.Nodes {
			for _, to := range b.Nodes {
				if from == to {
					continue
				}
				if err := from.Pod.CanPing(to.PodIPs[f]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// arrived wants all that the backend needs on every node, and nothing of another one. Devices may have been made anew, so their
// MACs and the rules are taken as they are; that the nodes agree about them is what counts.
func (b *Bench) arrived() error {
	f, err := formOf(b.Backend)
	if err != nil {
		return err
	}
	for _, n := range b.Nodes {
		n.rules = ""
		if err := n.learn(); err != nil {
			return err
		}
		if !f.modelled() {
			if err := n.hasOnly(f.Type); err != nil {
				return err
			}
		}
	}
	if !f.modelled() {
		return errors.Join(b.each(func(n *Node) error { return n.Agent.Ready() }), nothingInTheClear(b))
	}
	return errors.Join(b.Restored(), nothingInTheClear(b))
}

// hasOnly wants the node's devices to be of one backend: one for each family, or one for both.
func (n *Node) hasOnly(backend string) error {
	have, err := n.Dump()
	if err != nil {
		return err
	}
	kinds := map[string][]string{"wireguard": {kernel.KindWireGuard}, "ipip": {kernel.KindIPIP, kernel.KindIP6Tnl}}[backend]
	for _, l := range have.Links {
		if !strings.Contains(strings.Join(kinds, " "), l.Kind) {
			return fmt.Errorf("%s still has another backend's device:\n%s", n.Name, have)
		}
	}
	if len(have.Links) == 0 {
		return fmt.Errorf("%s has no device of %s", n.Name, backend)
	}
	return nil
}

// nothingInTheClear wants the router's count of what pods sent to pods without a tunnel, and not to the right node either, to
// be none.
func nothingInTheClear(b *Bench) error {
	text, err := b.Router.Try("nft", "list", "table", "inet", "bench-clear")
	if err == nil && strings.Count(text, "counter packets 0 bytes 0") != len(b.Lane.Families()) {
		err = fmt.Errorf("pods' packets left without a tunnel:\n%s", text)
	}
	return err
}
