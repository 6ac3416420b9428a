package subnet

import (
	"fmt"
	"strings"
)

// refusedBackends are flannel's other backends, each with the reason why it is not here and what to do instead.
var refusedBackends = map[string]string{
	"udp":         `sends every packet through a user-space process and is kept by flannel for debugging only: use "vxlan"`,
	"extension":   `runs shell commands with text taken from Node annotations, as root on every node: use "vxlan"`,
	"ipsec":       `needs strongSwan and one password for the whole cluster: use "vxlan" on a trusted underlay`,
	"tencent-vpc": `writes routes into the cloud's VPC with the cloud's keys on every node: use "vxlan", or the cloud's own route controller`,
	"ali-vpc":     `writes routes into the cloud's VPC with the cloud's keys on every node: use "vxlan", or the cloud's own route controller`,
	"aws-vpc":     `writes routes into the cloud's VPC with the cloud's keys on every node: use "vxlan", or the cloud's own route controller`,
	"gce":         `writes routes into the cloud's VPC with the cloud's keys on every node: use "vxlan", or the cloud's own route controller`,
	"host-gw":     `is not in this release: use "vxlan"`,
	"wireguard":   `is not in this release: use "vxlan", which does not encrypt`,
	"ipip":        `is not in this release: use "vxlan"`,
	"alloc":       `is not in this release: use "vxlan"`,
}

// backend reads the Backend object. Type decides which other keys exist, wherever it stands in the object.
func (r *confReader) backend(raw string, dst *Backend) error {
	list, err := members(raw)
	if err != nil {
		return err
	}
	b := Backend{VNI: 1} // a second Backend replaces the first one whole
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
		kind = "vxlan"
		r.warn("Backend.Type", `is absent: vxlan is used; write "Type": "vxlan"`)
	}
	b.Type = strings.ToLower(kind)
	if b.Type != "vxlan" {
		return r.refuse(kind)
	}
	r.object("Backend.", list, vxlanKeys(r, &b))
	if len(r.errs) > before {
		return placed{}
	}
	*dst = b
	return nil
}

// refuse files the sentence for a type that is not vxlan.
func (r *confReader) refuse(kind string) error {
	if why, ok := refusedBackends[strings.ToLower(kind)]; ok {
		r.fail("Backend.Type", fmt.Sprintf("%q %s", kind, why))
		return placed{}
	}
	near := ""
	if len(kind) <= 40 && Nearest(kind, []string{"vxlan"}) != "" {
		near = `: did you mean "vxlan"?`
	}
	r.fail("Backend.Type", fmt.Sprintf(`%q is not a known backend type%s; this release has "vxlan"`, shorten(kind), near))
	return placed{}
}

// vxlanKeys lists the keys of a vxlan Backend; MacPrefix and Name are flannel's for Windows and mean nothing here.
func vxlanKeys(r *confReader, b *Backend) []confKey {
	return []confKey{
		{"Type", text(new(string))},
		{"VNI", number(0, 1<<24-1, &b.VNI)},
		{"Port", orUnset(number(1, 65535, &b.Port))},
		{"MTU", orUnset(number(576, 65535, &b.MTU))},
		{"GBP", boolean(&b.GBP)},
		{"Learning", boolean(&b.Learning)},
		{"DirectRouting", func(raw string) error {
			err := boolean(&b.DirectRouting)(raw)
			if b.DirectRouting {
				r.warn("Backend.DirectRouting", "has no effect in this release: peers on the same link are tunnelled too")
			}
			return err
		}},
		{"MacPrefix", text(new(string))},
		{"Name", text(new(string))},
		{"TxChecksumOffload", func(raw string) (err error) {
			b.SoftChecksum, err = softChecksum(raw)
			return err
		}},
	}
}

// softChecksum reads the switch for NICs that get the checksums inside a tunnel wrong. auto trusts the NIC: the kernel's
// own fault of that kind was mended before the oldest kernel that we support.
func softChecksum(raw string) (bool, error) {
	switch raw {
	case `"off"`, "false":
		return true, nil
	case `"on"`, `"auto"`, "true":
		return false, nil
	}
	return false, fmt.Errorf(`%s is no choice: use "auto", "on" or "off"`, shorten(raw))
}
