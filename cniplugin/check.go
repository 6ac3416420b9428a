package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/weft-cni/weft/subnet/ipam"
)

// check asks the delegate, and then looks at what no delegate looks at: the addresses' reservations, the bridge, the
// MTU of both ends. It is silent when all is well.
func (p plugin) check(args *skel.CmdArgs) error {
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if len(c.PrevResult) == 0 {
		return fail(types.ErrInvalidNetworkConfig, "check %s: prevResult is missing", ownerOf(args))
	}
	return p.locked(c.records(), ownerOf(args), func(lock *ipam.Lock) error {
		rec, err := c.records().Read(ownerOf(args))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ipam.ErrBroken) {
			rec, err = rebuild(c, ipam.ResultAddrs(c.PrevResult))
		}
		if err != nil {
			return err
		}
		conf, err := checkConf(rec, c)
		if err != nil {
			return err
		}
		if _, err := p.run(p.ctx, call{kind: rec.Type, path: args.Path, conf: conf, lock: lock, limit: p.runLimit}); err != nil {
			return err
		}
		return checkOurs(args, c, rec)
	})
}

// checkConf is the recorded configuration with what the runtime says about the attachment now.
func checkConf(rec ipam.Record, c netConf) ([]byte, error) {
	d := object{}
	if err := json.Unmarshal(rec.Raw, &d); err != nil {
		return nil, fmt.Errorf("read record: %w", err)
	}
	d["prevResult"] = c.PrevResult
	if c.CNIVersion != "" {
		d.set("cniVersion", c.CNIVersion)
	}
	if c.RuntimeConfig != nil {
		d.set("runtimeConfig", c.RuntimeConfig)
	}
	return json.Marshal(d)
}

func checkOurs(args *skel.CmdArgs, c netConf, rec ipam.Record) error {
	addrs := ipam.ResultAddrs(c.PrevResult)
	if store, ok := rec.Store(); ok {
		if err := checkReservations(store, ownerOf(args), addrs); err != nil {
			return err
		}
	}
	pod, ok, err := lookIn(args.Netns, args.IfName)
	if err != nil {
		return err
	}
	if !ok || !pod.up {
		return fmt.Errorf("check: %s in %s is missing or down", args.IfName, args.Netns)
	}
	b := bridgeOf(rec)
	if b.name == "" {
		return nil
	}
	br, ok := look(b.name)
	switch {
	case !ok || !br.up:
		return fmt.Errorf("check: the bridge %s is missing or down", b.name)
	case b.mtu != 0 && pod.mtu != b.mtu:
		return fmt.Errorf("check: %s has MTU %d, want %d", args.IfName, pod.mtu, b.mtu)
	}
	for _, gw := range gatewaysOf(c.PrevResult) {
		if b.gateway && !slices.Contains(br.addrs, gw) {
			return fmt.Errorf("check: the bridge %s lacks the address %s, which is the pod's gateway", b.name, gw)
		}
	}
	return checkHairpin(rec, c.PrevResult)
}

func checkReservations(store ipam.Store, owner ipam.Owner, addrs []netip.Addr) error {
	for _, addr := range addrs {
		r, ok := store.Get(addr)
		if !ok || r.Broken {
			return fmt.Errorf("check: %s has no reservation in %s, so another pod may get it", addr, store.Dir)
		}
		if !r.Owner.Covers(owner) {
			return fmt.Errorf("check: %s is reserved for %s, not for %s", addr, r.Owner, owner)
		}
	}
	return nil
}

// checkHairpin looks whether the bridge sends a frame back out of the pod's port, without which a pod cannot reach
// itself through its Service. Where sysfs shows another namespace, nothing is said.
func checkHairpin(rec ipam.Record, prevResult []byte) error {
	var conf struct {
		HairpinMode bool `json:"hairpinMode"`
	}
	var result struct {
		Interfaces []struct {
			Name    string `json:"name"`
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
	}
	if json.Unmarshal(rec.Raw, &conf) != nil || !conf.HairpinMode || json.Unmarshal(prevResult, &result) != nil {
		return nil
	}
	for _, i := range result.Interfaces {
		if i.Sandbox != "" || strings.ContainsRune(i.Name, '/') {
			continue
		}
		mode, err := os.ReadFile("/sys/class/net/" + i.Name + "/brport/hairpin_mode")
		if err == nil && strings.TrimSpace(string(mode)) == "0" {
			return fmt.Errorf("check: the bridge port %s has its hairpin mode off", i.Name)
		}
	}
	return nil
}
