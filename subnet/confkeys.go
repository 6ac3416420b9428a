package subnet

import (
	"fmt"
	"strings"
)

// backendKeys lists the keys that Backend has with a Type. MTU is flannel's for vxlan and wireguard; it says the same of the
// others, whose underlay can be narrow as well.
func backendKeys(kind string, b *Backend) []confKey {
	keys := []confKey{
		{"Type", text(new(string))},
		{"MTU", orUnset(number(576, 65535, &b.MTU))},
	}
	switch kind {
	case VXLAN:
		return append(keys, vxlanKeys(b)...)
	case WireGuard:
		return append(keys, wireGuardKeys(&b.WireGuard)...)
	case IPIP:
		return append(keys, confKey{"DirectRouting", boolean(&b.DirectRouting)})
	}
	return keys
}

// ownersOf lists the types that have a key.
func ownersOf(name string) []string {
	var owners []string
	for _, kind := range BackendKinds() {
		if _, ok := find(backendKeys(kind, &Backend{}), name); ok {
			owners = append(owners, kind)
		}
	}
	return owners
}

// vxlanKeys lists what only vxlan has; MacPrefix and Name are flannel's for Windows and mean nothing here.
func vxlanKeys(b *Backend) []confKey {
	return []confKey{
		{"VNI", number(0, 1<<24-1, &b.VNI)},
		{"Port", orUnset(number(1, 65535, &b.Port))},
		{"GBP", boolean(&b.GBP)},
		{"Learning", boolean(&b.Learning)},
		{"DirectRouting", boolean(&b.DirectRouting)},
		{"MacPrefix", text(new(string))},
		{"Name", text(new(string))},
		{"TxChecksumOffload", offload(&b.TxChecksum)},
	}
}

// offload reads the switch for network cards that get the checksums inside a tunnel wrong.
func offload(dst *Offload) func(string) error {
	return func(raw string) error {
		switch strings.Trim(raw, `"`) {
		case "auto":
			*dst = OffloadAuto
		case "on", "true":
			*dst = OffloadOn
		case "off", "false":
			*dst = OffloadOff
		default:
			return fmt.Errorf(`%s is no choice: use "auto", "on" or "off"`, shorten(raw))
		}
		return nil
	}
}
