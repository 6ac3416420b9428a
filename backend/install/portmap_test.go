package install

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet"
)

func TestC21PortmapIsToldByWhatTheHostMakesItsRules(t *testing.T) {
	const plain = `{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel"},{"type":"portmap","capabilities":{"portMappings":true}}]}`
	for name, c := range map[string]struct {
		in    string
		rules string
		want  string
	}{
		"iptables": {plain, "iptables", `{
  "cniVersion": "1.0.0",
  "name": "cbr0",
  "plugins": [
    {
      "type": "flannel"
    },
    {
      "backend": "iptables",
      "capabilities": {
        "portMappings": true
      },
      "type": "portmap"
    }
  ]
}
`},
		"a host that is not known":       {plain, "", plain},
		"the operator's word":            {`{"plugins":[{"type":"portmap","backend":"nftables"}]}`, "iptables", `{"plugins":[{"type":"portmap","backend":"nftables"}]}`},
		"conditions of one kind only":    {`{"plugins":[{"type":"portmap","conditionsV4":["ip daddr 1.2.3.4"]}]}`, "iptables", `{"plugins":[{"type":"portmap","conditionsV4":["ip daddr 1.2.3.4"]}]}`},
		"a chain of kube-proxy's":        {`{"plugins":[{"type":"portmap","externalSetMarkChain":"KUBE-MARK-MASQ"}]}`, "nftables", `{"plugins":[{"type":"portmap","externalSetMarkChain":"KUBE-MARK-MASQ"}]}`},
		"no portmap, and an ampersand &": {`{"plugins":[{"type":"flannel","note":"a & b"}]}`, "nftables", `{"plugins":[{"type":"flannel","note":"a & b"}]}`},
	} {
		got, err := NameRules([]byte(c.in), subnet.Host{Rules: c.rules})
		if d := cmp.Diff(c.want, string(got)); err != nil || d != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, d)
		}
	}
	for _, bad := range []string{"", "[]", `{"plugins":7}`} {
		if _, err := NameRules([]byte(bad), subnet.Host{Rules: "iptables"}); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}
