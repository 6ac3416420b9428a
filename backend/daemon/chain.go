package daemon

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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
		IPAM struct {
			Type    string `json:"type"`
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
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

// cniData is where CNI plugins keep their state by default, which is mounted at Paths.CNIData.
const cniData = "/var/lib/cni/"

// reservations is host-local's folder as we see it. An error tells why its books cannot be read here.
func (p Paths) reservations() (string, error) {
	dir := filepath.Join(p.CNIData, "networks")
	for _, link := range chainOf(p.CNITemplate()).Plugins {
		kind, other := cmp.Or(link.IPAM.Type, "host-local"), filepath.Clean(link.IPAM.DataDir)
		inside, ours := strings.CutPrefix(other, cniData)
		switch {
		case link.Type != install.Shim:
			continue
		case kind != "host-local":
			return dir, fmt.Errorf("addresses are managed by %s, which collects them itself or not at all", kind)
		case link.IPAM.DataDir == "":
		case ours:
			dir = filepath.Join(p.CNIData, inside)
		case !exists(other):
			return dir, fmt.Errorf("cni-conf.json keeps reservations in %s, which is not here: those of dead pods are not freed; "+
				"mount it into the agent's container, or choose a dataDir in %s", other, cniData)
		default:
			dir = other
		}
	}
	return dir, nil
}

// network is the name of the CNI network, under which host-local keeps its reservations.
func network(template string) string { return cmp.Or(chainOf(template).Name, "cbr0") }
