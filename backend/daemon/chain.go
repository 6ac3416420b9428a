package daemon

import (
	"cmp"
	"encoding/json"
	"os"
	"strings"

	"github.com/weft-cni/weft/backend/install"
)

// chain is what the agent itself reads of cni-conf.json. What is not there, or cannot be read, is as in the built-in one.
type chain struct {
	Name    string `json:"name"`
	Plugins []struct {
		Type     string `json:"type"`
		Delegate struct {
			Type   string `json:"type"`
			Bridge string `json:"bridge"`
		} `json:"delegate"`
	} `json:"plugins"`
}

func chainOf(template string) chain {
	var c chain
	data, _ := os.ReadFile(template)
	_ = json.Unmarshal(data, &c) // the rest of one with a value of the wrong type is read
	return c
}

// bridge is the name of the pods' bridge.
func bridge(template string) string {
	for _, p := range chainOf(template).Plugins {
		if name := p.Delegate.Bridge; name != "" && !strings.Contains(name, "/") {
			return name
		}
	}
	return "cni0"
}

// bridges tells whether the pods are on a bridge, and not, as with ptp, each on a device of its own.
func bridges(template string) bool {
	for _, p := range chainOf(template).Plugins {
		if p.Type == install.Shim {
			return cmp.Or(p.Delegate.Type, "bridge") == "bridge"
		}
	}
	return true
}

// network is the name of the CNI network, under which host-local keeps its reservations.
func network(template string) string { return cmp.Or(chainOf(template).Name, "cbr0") }
