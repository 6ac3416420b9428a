package netfilter

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// N-23: what others put into their tables uses the names of our fields in its own way.
func TestN23ATableWithObjectsThatNobodyLooksAtIsRead(t *testing.T) {
	const listing = `{"nftables":[{"metainfo":{"version":"1.0.6"}},{"table":{"family":"inet","name":"ops"}},
		{"ct timeout":{"family":"inet","name":"slow","table":"ops","handle":1,"protocol":"tcp","l3proto":"ip","policy":{"established":120}}},
		{"flowtable":{"family":"inet","name":"f","table":"ops","hook":"ingress","prio":0,"dev":["eth0","eth1"]}},
		{"quota":{"family":"inet","name":"q","table":"ops","bytes":-1,"inv":false}},
		{"chain":{"family":"inet","table":"ops","name":"in","type":"filter","hook":"input","prio":0,"policy":"drop"}}]}`
	var kinds []string
	var policy string
	err := Objects(listing, func(kind string, o Object) {
		kinds = append(kinds, kind+" "+o.Name)
		policy += o.Policy
	})
	want := []string{"metainfo ", "table ops", "ct timeout slow", "flowtable f", "quota q", "chain in"}
	if d := cmp.Diff(want, kinds); d != "" || err != nil || policy != "drop" {
		t.Errorf("%v, policies %q (-want +got):\n%s", err, policy, d)
	}
	if err := Objects(`{"nftables":[{"chain":{"name":"in","policy":{"drop":1}}}]}`, func(string, Object) {}); err == nil {
		t.Error("a chain whose policy cannot be read is none that stops nobody")
	}
}
