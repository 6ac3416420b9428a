package install

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/weft-cni/weft/subnet"
)

// NameRules names to portmap, in a conflist, by what it makes its rules. Left alone it asks iptables twice in every call,
// and with it takes the lock that kube-proxy waits for, pods without ports included (C-21). What the operator wrote
// stands; so does a portmap with words that only one kind of rules understands. Without knowledge of the host the
// conflist comes back as it is.
func NameRules(conflist []byte, host subnet.Host) ([]byte, error) {
	var list map[string]json.RawMessage
	if err := json.Unmarshal(conflist, &list); err != nil {
		return nil, fmt.Errorf("read the conflist: %w", err)
	}
	var chain []map[string]json.RawMessage
	if err := json.Unmarshal(list["plugins"], &chain); err != nil {
		return nil, fmt.Errorf("read the conflist's plugins: %w", err)
	}
	named := false
	for _, p := range chain {
		if host.Rules != "" && undecided(p) {
			p["backend"], named = json.RawMessage(`"`+host.Rules+`"`), true
		}
	}
	if !named {
		return conflist, nil
	}
	raw, err := marshal(chain)
	if err != nil {
		return nil, fmt.Errorf("render the conflist's plugins: %w", err)
	}
	list["plugins"] = raw
	return marshal(list)
}

// undecided reports whether a plugin is a portmap that chooses by itself.
func undecided(p map[string]json.RawMessage) bool {
	for _, key := range []string{"backend", "externalSetMarkChain", "conditionsV4", "conditionsV6"} {
		if _, ok := p[key]; ok {
			return false
		}
	}
	return string(p["type"]) == `"portmap"`
}

// marshal is json.MarshalIndent, but leaves & as it is instead of writing \u0026.
func marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	return out.Bytes(), err
}
