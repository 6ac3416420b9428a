package main

import (
	"encoding/json"
	"net/netip"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// bare is an IPv6 gateway that the delegate is not told of. With one it waits until no address of the pod is tentative, and
// it looks every 50 ms; but the kernel, which is told not to look for duplicates, is done within a millisecond after the
// first look. So a pod with IPv6 would come 50 ms later than one without. Here the delegate gets addresses without the
// gateway and routes that name it, the plugin waits itself, in short steps, and the runtime reads the result as it would
// have been.
//
// The zero value is none.
type bare struct {
	gateway netip.Addr
	routes  map[string]bool // destinations to which the gateway was added, as they are written in the result
}

// bareOf is none where the result could not be told from what it would have been.
func bareOf(addrs []netip.Prefix, routes []object) bare {
	seen := map[netip.Prefix]bool{}
	for _, r := range routes {
		dst := r.prefix()
		if !dst.IsValid() || seen[dst] {
			return bare{}
		}
		seen[dst] = true
	}
	for _, p := range addrs {
		if subnet.FamilyOf(p.Addr()) == subnet.IPv6 {
			return bare{gateway: p.Addr(), routes: map[string]bool{}}
		}
	}
	return bare{}
}

func (b bare) on() bool { return b.gateway.IsValid() }

// direct names the gateway in the IPv6 routes that go without.
func (b bare) direct(routes []object) {
	for _, r := range routes {
		p := r.prefix()
		if !b.on() || !p.IsValid() || subnet.FamilyOf(p.Addr()) != subnet.IPv6 {
			continue
		}
		if _, ok := r["gw"]; !ok {
			r.set("gw", b.gateway)
			b.routes[p.String()] = true
		}
	}
}

// withoutGateways takes the gateways of IPv6 addresses out of a result.
func withoutGateways(result []byte) []byte {
	out := object{}
	var ips []object
	if json.Unmarshal(result, &out) != nil || out["ips"] != nil && json.Unmarshal(out["ips"], &ips) != nil {
		return result
	}
	for _, ip := range ips {
		if text, err := ip.text("address"); err == nil && isOfFamily(text, subnet.IPv6) {
			delete(ip, "gateway")
		}
	}
	if ips != nil {
		out.set("ips", ips)
	}
	old := object{}
	if json.Unmarshal(out["ip6"], &old) == nil { // up to 0.2.0
		delete(old, "gateway")
		out.set("ip6", old)
	}
	if raw, err := json.Marshal(out); err == nil {
		return raw
	}
	return result
}

// mend makes of the delegate's result what it would have been. It works on the text, so that all else stays as it is
// printed: the fields of a result have a fixed order, and each its own line.
func (b bare) mend(result []byte) []byte {
	if !b.on() {
		return result
	}
	lines := strings.Split(string(result), "\n")
	var out []string
	dst := ""
	for i, line := range lines {
		text, more := strings.CutSuffix(line, ",")
		key, value := field(text)
		switch {
		case key == "dst":
			dst = value
		case key == "gw" && value == b.gateway.String() && b.routes[dst]:
			if !more {
				out[len(out)-1] = strings.TrimSuffix(out[len(out)-1], ",")
			}
			continue
		case (key == "address" || key == "ip") && isOfFamily(value, subnet.IPv6) && !isField(lines[min(i+1, len(lines)-1)], "gateway"):
			indent, _, _ := strings.Cut(line, `"`)
			out = append(out, text+",", indent+`"gateway": "`+b.gateway.String()+`"`+line[len(text):])
			continue
		}
		out = append(out, line)
	}
	return []byte(strings.Join(out, "\n"))
}

// field reads a line of printed JSON that holds a field with a string.
func field(line string) (key, value string) {
	var one map[string]string
	if json.Unmarshal([]byte("{"+line+"}"), &one) == nil {
		for key, value = range one { // there is one
		}
	}
	return key, value
}

func isField(line, name string) bool {
	key, _ := field(strings.TrimSuffix(line, ","))
	return key == name
}

func isOfFamily(text string, f subnet.Family) bool {
	p, err := netip.ParsePrefix(text)
	return err == nil && subnet.FamilyOf(p.Addr()) == f
}
