package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/weft-cni/weft/subnet"
)

// nodeNet is the part of subnet.env that a pod's interface depends on.
type nodeNet struct {
	Networks []netip.Prefix // of the cluster, IPv4 first
	Subnets  []netip.Prefix // of this node, one a family, masked, IPv4 first
	MTU      int            // 0 leaves it to the delegate
	IPMasq   bool           // the agent masquerades, so that the delegate need not
}

// has tells whether pods of this node get addresses of a family.
func (n nodeNet) has(f subnet.Family) bool {
	return slices.ContainsFunc(n.Subnets, func(p netip.Prefix) bool { return subnet.FamilyOf(p.Addr()) == f })
}

// buildDelegate makes the configuration of the delegate: what the operator wrote under "delegate", completed.
func buildDelegate(c netConf, n nodeNet) (object, error) {
	kind, err := c.Delegate.text("type")
	if _, there := c.Delegate["type"]; err != nil || there && kind == "" {
		return nil, errors.New("'delegate' dictionary, if present, must have (string) 'type' field")
	}
	for _, key := range []string{"name", "ipam"} {
		if _, ok := c.Delegate[key]; ok {
			return nil, fmt.Errorf("'delegate' dictionary must not have '%s' field, it'll be set by flannel", key)
		}
	}
	ipam, err := buildIPAM(c.IPAM, n)
	if err != nil {
		return nil, fmt.Errorf("failed to assemble Delegate IPAM: %w", err)
	}
	d := object{}
	maps.Copy(d, c.Delegate)
	if c.RuntimeConfig != nil {
		d.set("runtimeConfig", c.RuntimeConfig)
	}
	d.set("name", c.Name)
	d.setDefault("type", "bridge")
	d.setDefault("ipMasq", !n.IPMasq)
	if n.MTU != 0 {
		d.setDefault("mtu", n.MTU)
	}
	if kind == "" || kind == "bridge" {
		d.setDefault("isGateway", true)
	}
	if c.CNIVersion != "" {
		d.set("cniVersion", c.CNIVersion)
	}
	d.set("ipam", ipam)
	return d, nil
}

// buildIPAM completes "ipam". Its ranges are the node's subnets whatever the operator wrote, because an address of
// another range would have no route to it.
func buildIPAM(in object, n nodeNet) (object, error) {
	kind, err := in.text("type")
	if err != nil {
		return nil, err
	}
	if _, err := in.text("dataDir"); err != nil {
		return nil, err
	}
	routes, err := readRoutes(in["routes"])
	if err != nil {
		return nil, fmt.Errorf("failed to read IPAM routes: %w", err)
	}
	for _, p := range n.Networks {
		if !n.has(subnet.FamilyOf(p.Addr())) {
			continue // a node may have one family in a cluster of two; its pods have nowhere to send the other to
		}
		routes = append(routes, json.RawMessage(fmt.Sprintf(`{"dst":"%s"}`, p)))
	}
	type subnetRange struct {
		Subnet string `json:"subnet"`
	}
	var ranges [][]subnetRange
	for _, p := range n.Subnets {
		ranges = append(ranges, []subnetRange{{p.Masked().String()}})
	}
	out := object{}
	maps.Copy(out, in)
	if kind == "" { // the bridge would take that for a pod without addresses
		out.set("type", "host-local")
	}
	out.set("routes", routes)
	out.set("ranges", ranges)
	return out, nil
}

// readRoutes checks the routes and keeps each as it was written.
func readRoutes(raw json.RawMessage) ([]json.RawMessage, error) {
	routes := []json.RawMessage{}
	if raw == nil {
		return routes, nil
	}
	var check []types.Route
	err := json.Unmarshal(raw, &check)
	if err == nil {
		err = json.Unmarshal(raw, &routes)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to parse ipam.routes: %w", err)
	}
	return routes, nil
}
