package subnet

import (
	"fmt"
	"slices"
	"strings"
)

const cloudRoutes = `writes routes into the cloud's VPC with the cloud's keys on every node: use "alloc" and let the cloud's own route controller do it, or "vxlan"`

// refusedBackends are flannel's other backends, each with the reason why it is not here and what to do instead.
var refusedBackends = map[string]string{
	"udp":         `sends every packet through a user-space process and is kept by flannel for debugging only: use "vxlan"`,
	"extension":   `runs shell commands with text taken from Node annotations, as root on every node: use "vxlan", "host-gw", "wireguard" or "ipip"`,
	"ipsec":       `needs strongSwan and one password for the whole cluster: use "wireguard", which encrypts with a key per node`,
	"tencent-vpc": cloudRoutes,
	"ali-vpc":     cloudRoutes,
	"aws-vpc":     cloudRoutes,
	"gce":         cloudRoutes,

	"wireguard-native": `is what k3s calls it: use "wireguard"`,
}

// backend reads the Backend object. Type decides which other keys exist, wherever it stands in the object.
func (r *confReader) backend(raw string, dst *Backend) error {
	list, err := members(raw)
	if err != nil {
		return err
	}
	kind, given := "", false
	before := len(r.errs)
	for _, m := range list {
		if !strings.EqualFold(m.key, "Type") || m.value == "null" {
			continue
		}
		given = true
		if err := text(&kind)(m.value); err != nil {
			r.fail("Backend.Type", err.Error())
		}
	}
	if len(r.errs) > before {
		return placed{}
	}
	if !given {
		kind = VXLAN
		r.warn("Backend.Type", `is absent: vxlan is used; write "Type": "vxlan"`)
	}
	b := Backend{Type: strings.ToLower(kind), VNI: 1} // a second Backend replaces the first one whole
	if !slices.Contains(BackendKinds(), b.Type) {
		return r.refuse(kind)
	}
	if b.Type == WireGuard {
		b.WireGuard.Mode = ModeSeparate
	}
	r.object("Backend.", list, backendKeys(b.Type, &b))
	if len(r.errs) > before {
		return placed{}
	}
	*dst = b
	return nil
}

// refuse files the sentence for a type that is none of ours.
func (r *confReader) refuse(kind string) error {
	if why, ok := refusedBackends[strings.ToLower(kind)]; ok {
		r.fail("Backend.Type", fmt.Sprintf("%q %s", kind, why))
		return placed{}
	}
	hint := ""
	if near := Nearest(kind, BackendKinds()); near != "" && len(kind) <= 40 {
		hint = fmt.Sprintf(`: did you mean %q?`, near)
	}
	r.fail("Backend.Type", fmt.Sprintf(`%q is not a known backend type%s; there are %q`, shorten(kind), hint, BackendKinds()))
	return placed{}
}
