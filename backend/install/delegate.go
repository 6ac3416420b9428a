package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// delegate is what a template says of the plugin that ours hands a pod to. What our plugin or that one refuse at each pod must
// not be published: a node that promises a network would have no pod started.
type delegate map[string]json.RawMessage

// UnmarshalJSON keeps what is no object for check to complain of.
func (d *delegate) UnmarshalJSON(raw []byte) error {
	keys := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &keys); err != nil {
		keys = map[string]json.RawMessage{notObject: nil}
	}
	*d = keys
	return nil
}

// notObject is no key that a person writes.
const notObject = "\x00"

// kind is the plugin's program.
func (d delegate) kind() string {
	var kind string
	_ = json.Unmarshal(d["type"], &kind) // check tells
	return defaultTo(kind, "bridge")
}

// check lists what would fail each pod.
func (d delegate) check() error {
	if _, is := d[notObject]; is {
		return errors.New(`"delegate": want an object, like {"hairpinMode": true, "isDefaultGateway": true}`)
	}
	var errs []error
	bad := func(key, want string) {
		errs = append(errs, fmt.Errorf(`"delegate" has %q: %.60s: %s`, key, bytes.TrimSpace(d[key]), want))
	}
	for _, key := range []string{"name", "ipam"} {
		if _, there := d[key]; there {
			bad(key, "leave it out: it is set for each pod")
		}
	}
	var text string
	if raw, there := d["type"]; there && (json.Unmarshal(raw, &text) != nil || text == "") {
		bad("type", "want the name of a CNI plugin, or leave it out for bridge")
	}
	if d.kind() == "bridge" {
		d.checkBridge(bad)
	}
	return errors.Join(errs...)
}

// checkBridge looks at the values of the reference plugin "bridge" that a template may have.
func (d delegate) checkBridge(bad func(key, want string)) {
	var name string
	if raw, there := d["bridge"]; there && (json.Unmarshal(raw, &name) != nil || !subnet.ValidIfName(name)) {
		bad("bridge", "want the name of an interface, of at most 15 letters")
	}
	var mtu int
	if raw, there := d["mtu"]; there && (json.Unmarshal(raw, &mtu) != nil || mtu < 0) {
		bad("mtu", "want a number, or leave it out for that of subnet.env")
	}
	for _, key := range []string{"hairpinMode", "isGateway", "isDefaultGateway", "forceAddress", "ipMasq", "promiscMode"} {
		if raw, there := d[key]; there && !slices.Contains([]string{"true", "false", "null"}, string(bytes.TrimSpace(raw))) {
			bad(key, "want true or false, without quotes")
		}
	}
}
