package daemon

import (
	"bytes"
	"os"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// familyPatience is how long subnet.env goes on giving pods a family that is out of use. A link that flaps takes its IPv6
// addresses along, and a pod that is made before they are back would be without the family for good.
const familyPatience = 5 * time.Minute

// leastIPv6MTU is what a device needs to have IPv6 at all (RFC 8200, section 5).
const leastIPv6MTU = 1280

// env writes subnet.env when it is not yet what it should be.
func (p *publisher) env(a *applied) error {
	have, err := os.ReadFile(p.cfg.Paths.SubnetFile)
	old, bad := subnet.ParseEnv(have)
	if err != nil || bad != nil {
		old = subnet.Env{} // and is replaced
	}
	want := subnet.Env{MTU: a.Plan.PodMTU, IPMasq: p.cfg.Traffic.Masquerade}
	for _, f := range subnet.Families() {
		switch {
		case a.uses(f):
			p.lost[f] = time.Time{}
			want.Networks[f], want.Subnets[f] = a.Conf.Networks[f], a.Net.Ends[f].PodCIDR
		case p.stays(f, a, old):
			want.Networks[f], want.Subnets[f], want.MTU = old.Networks[f], old.Subnets[f], min(old.MTU, want.MTU)
		}
	}
	text := want.Render()
	if err == nil && bytes.Equal(have, text) {
		return nil
	}
	if err == nil {
		p.log.Info("subnet.env changes", "was", oneLine(string(have)), "now", oneLine(string(text)))
	}
	if err := p.files.WriteFile(p.cfg.Paths.SubnetFile, text, 0o644); err != nil {
		return err
	}
	if p.moved != nil && moved(old, want) {
		p.moved()
	}
	return nil
}

// stays tells whether a family that is out of use stays in subnet.env for now: the node has its range as before.
func (p *publisher) stays(f subnet.Family, a *applied, old subnet.Env) bool {
	cidr := a.Snapshot.Self.PodCIDRs[f]
	narrow := f == subnet.IPv6 && min(old.MTU, a.Plan.PodMTU) < leastIPv6MTU
	if !a.Conf.Enabled[f] || !cidr.IsValid() || old.Subnets[f] != cidr || old.Networks[f] != a.Conf.Networks[f] || narrow {
		p.lost[f] = time.Time{}
		return false
	}
	if p.lost[f].IsZero() {
		p.lost[f] = time.Now()
	}
	return time.Since(p.lost[f]) < familyPatience
}
