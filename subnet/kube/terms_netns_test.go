package kube_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/claim"
	"github.com/weft-cni/weft/tests/lane"
)

// The tests against an API server are written in the terms of IPv4, as nodes with 10.244.N.0/24 at 192.168.50.N. What they say
// to the server and what they expect goes through here, which puts it into the families of the run's lane.

func families() []subnet.Family {
	l, err := lane.Parse(os.Getenv(lane.Env))
	if err != nil {
		panic(err)
	}
	return l.Families()
}

var anAddress = regexp.MustCompile(`\b(\d+)\.(\d+)\.(\d+)\.(\d+)\b(/\d+)?`)

// in says a text of IPv4 in the terms of a family. What no node can have is something that none can have in IPv6 either.
func in(f subnet.Family, text string) string {
	if f == subnet.IPv4 {
		return text
	}
	switch text {
	case "fd00::1", "fd00::2": // of the other family
		return "192.168.99.1"
	case "127.0.0.1":
		return "::1"
	case "224.0.0.1":
		return "ff02::1"
	case "255.255.255.255":
		return "fe80::1"
	case "0.0.0.0":
		return "::"
	case "0.0.0.0/0":
		return "::/0"
	case "10.0.0.0/8":
		return "fd00::/16"
	case "224.0.0.0/24":
		return "ff05::/64"
	}
	if strings.HasPrefix(text, "::ffff:") {
		return text
	}
	return anAddress.ReplaceAllStringFunc(text, func(one string) string {
		m := anAddress.FindStringSubmatch(one)
		if m[5] == "" {
			return fmt.Sprintf("fd00:%s:%s:%s::%s", m[1], m[2], m[3], m[4])
		}
		bits := map[string]int{"/24": 64, "/29": 80, "/32": 128}[m[5]]
		return netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("fd00:%s:%s:%s:%s::", m[1], m[2], m[3], m[4])), bits).Masked().String()
	})
}

// cidrs are a Node's ranges.
func cidrs(cidr string) []string {
	var out []string
	for _, f := range families() {
		out = append(out, in(f, cidr))
	}
	return out
}

// notes are annotations in the keys and terms of the lane's families.
func notes(text map[string]string) map[string]string {
	out := map[string]string{}
	four, six := claim.KeysOf(subnet.IPv4), claim.KeysOf(subnet.IPv6)
	twins := map[string]string{
		four.PublicIP: six.PublicIP, four.BackendData: six.BackendData, four.Overwrite: six.Overwrite, four.NodePublicIP: six.NodePublicIP,
	}
	for key, value := range text {
		short := strings.TrimPrefix(key, string(flannelPrefix))
		twin, ok := twins[short]
		if !ok {
			out[key] = value
			continue
		}
		for _, f := range families() {
			out[string(flannelPrefix)+[2]string{short, twin}[f]] = in(f, value)
		}
	}
	return out
}

// patched is the body of a patch likewise.
func patched(body string) ([]byte, error) {
	var patch map[string]any
	if err := json.Unmarshal([]byte(body), &patch); err != nil {
		return nil, err
	}
	if meta, ok := patch["metadata"].(map[string]any); ok {
		if list, ok := meta["annotations"].(map[string]any); ok {
			text := map[string]string{}
			for k, v := range list {
				text[k] = fmt.Sprint(v)
			}
			meta["annotations"] = notes(text)
		}
	}
	if spec, ok := patch["spec"].(map[string]any); ok {
		list := cidrs(fmt.Sprint(spec["podCIDR"]))
		spec["podCIDR"], spec["podCIDRs"] = list[0], list
	}
	return json.Marshal(patch)
}

func podNetwork() (out [2]netip.Prefix) {
	for _, f := range families() {
		out[f] = [2]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}[f]
	}
	return out
}

func conf() subnet.NetConf {
	c := subnet.NetConf{Networks: podNetwork(), Backend: subnet.Backend{Type: subnet.VXLAN, VNI: 1}}
	for _, f := range families() {
		c.Enabled[f] = true
	}
	return c
}
