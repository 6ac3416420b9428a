package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/wireguard"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/subnet/wgkey"
)

// keys holds the node's WireGuard key once it has been read or made.
type keys struct {
	file wgkey.File
	conf wgkey.Conf // what net-conf.json said last of WireGuard
	log  *slog.Logger
	key  subnet.Secret
}

func newKeys(p Paths, files subnet.Writer, log *slog.Logger) keys {
	f := wgkey.In(p.StateDir, filepath.Dir(p.SubnetFile), p.WireGuardKey)
	f.Writer = files
	return keys{file: f, conf: wgkey.ConfIn(p.StateDir, files), log: log}
}

// get reads the key, or makes it the first time. An older node with the same key has it from the same copy of a machine:
// nobody sends to us while that is so, and nothing is lost by another key.
func (k *keys) get(s subnet.Snapshot) (subnet.Secret, error) {
	if k.key.IsZero() {
		key, note, err := k.file.Load()
		if err != nil {
			return subnet.Secret{}, err
		}
		if note != "" {
			k.log.Info(note)
		}
		k.key = key
	}
	if kube.YieldsKey(s, wireguard.PublicKey(k.key)) {
		key, err := k.file.Renew()
		if err != nil {
			return subnet.Secret{}, k.stuck(s, err)
		}
		k.log.Warn("another node has our WireGuard key, as a cloned machine does; made a new one")
		k.key = key
	}
	return k.key, nil
}

// stuck tells of a key that is another node's, and of why it cannot be replaced. A file that an administrator hands out, such as a
// mounted Secret, is not ours to write.
func (k *keys) stuck(s subnet.Snapshot, err error) error {
	for _, p := range kube.SelfProblems(s) {
		if p.Yields && p.Reason == kube.ReasonKeyConflict {
			err = fmt.Errorf("%s; it cannot make another one: %w", p.Text, err)
		}
	}
	if k.file.Adopt == "" {
		err = fmt.Errorf("%w; WIREGUARD_KEY_FILE has to name a file of its own on each node", err)
	}
	return err
}

// chooseWireGuard fills in the key and what net-conf.json says, or said.
func (p *plane) chooseWireGuard(a *applied, have kernel.State) error {
	if !speaks(a.Net, subnet.WireGuard) {
		return nil
	}
	key, err := p.keys.get(a.Snapshot)
	if err != nil {
		return err
	}
	a.Net.WireGuard.Key, a.Net.WireGuard.Conf = key, a.Conf.Backend.WireGuard
	if a.Net.Kind != subnet.WireGuard {
		a.Net.WireGuard.Conf = p.keys.former(have)
		return nil
	}
	if err := p.keys.conf.Keep(a.Conf.Backend.WireGuard); err != nil {
		p.log.Warn("what net-conf.json says of WireGuard will be forgotten by a reboot", "err", err)
	}
	return nil
}

// former is what an earlier net-conf.json said. Without the file the devices show it, until the next boot.
func (k *keys) former(have kernel.State) subnet.WireGuardConf {
	conf, ok, err := k.conf.Load()
	if err != nil {
		k.log.Warn("WireGuard's former configuration is read off its devices", "err", err)
	}
	if !ok {
		return formerWireGuard(have)
	}
	return conf
}

// formerWireGuard is what the devices of an earlier configuration have: net-conf.json does not say it any more.
func formerWireGuard(have kernel.State) subnet.WireGuardConf {
	c := subnet.WireGuardConf{Mode: subnet.ModeAuto, Ports: [2]uint16{51820, 51821}}
	for _, f := range subnet.Families() {
		if l, ok := have.Links[kernel.WireGuardName(f)]; ok {
			c.Ports[f] = l.Port
			if f == subnet.IPv6 {
				c.Mode = subnet.ModeSeparate
			}
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(have.Peers), func(a, b kernel.WGKey) int { return bytes.Compare(a.Key[:], b.Key[:]) }) {
		if p := have.Peers[k]; !p.PSK.IsZero() {
			c.PSK = p.PSK // one for all peers
			break
		}
	}
	return c
}
