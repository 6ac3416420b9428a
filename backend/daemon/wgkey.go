package daemon

import (
	"maps"
	"slices"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// wgKey holds the node's WireGuard key once it has been read or made.
type wgKey struct {
	load func() (subnet.Secret, error)
	key  subnet.Secret
}

// get reads the key, or makes it the first time.
func (k *wgKey) get() (subnet.Secret, error) {
	if k.key.IsZero() {
		key, err := k.load()
		if err != nil {
			return subnet.Secret{}, err
		}
		k.key = key
	}
	return k.key, nil
}

// chooseWireGuard fills in the key and what net-conf.json says, or said.
func (p *plane) chooseWireGuard(a *applied, have kernel.State) error {
	if !speaks(a.Net, subnet.WireGuard) {
		return nil
	}
	key, err := p.keys.get()
	if err != nil {
		return err
	}
	a.Net.WireGuard.Key, a.Net.WireGuard.Conf = key, a.Conf.Backend.WireGuard
	if a.Net.Kind != subnet.WireGuard {
		a.Net.WireGuard.Conf = formerWireGuard(have)
	}
	return nil
}

// formerWireGuard is what the devices of an earlier configuration have: net-conf.json does not say it any more.
func formerWireGuard(have kernel.State) subnet.WireGuardConf {
	c := subnet.WireGuardConf{Mode: subnet.ModeAuto, Ports: [2]uint16{51820, 51821}}
	for _, f := range subnet.Families() {
		if l, ok := have.Links[[2]string{"flannel-wg", "flannel-wg-v6"}[f]]; ok {
			c.Ports[f] = l.Port
			if f == subnet.IPv6 {
				c.Mode = subnet.ModeSeparate
			}
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(have.Peers), func(a, b kernel.WGKey) int { return slices.Compare(a.Key[:], b.Key[:]) }) {
		if p := have.Peers[k]; !p.PSK.IsZero() {
			c.PSK = p.PSK // one for all peers
			break
		}
	}
	return c
}
