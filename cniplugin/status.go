package main

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/weft-cni/weft/subnet/ipam"
)

// status says whether an ADD would work: subnet.env is there, the agent says that the device is up, and the delegate
// can be run and has nothing against it.
func (p plugin) status(args *skel.CmdArgs) error {
	c, err := parseConf(args.StdinData)
	if err != nil {
		return fail(types.ErrPluginNotAvailable, "%v", err)
	}
	if reason := reasonNotReady(c.SubnetFile); reason != "" {
		return fail(types.ErrPluginNotAvailable, "%s", reason)
	}
	n, err := loadEnv(c.SubnetFile)
	if err != nil {
		return fail(types.ErrPluginNotAvailable, "%v", err)
	}
	d, err := buildDelegate(c, n)
	if err != nil {
		return fail(types.ErrPluginNotAvailable, "%v", err)
	}
	raw, err := json.Marshal(d)
	if err != nil {
		return err
	}
	rec, err := ipam.ParseRecord(raw)
	if err != nil {
		return err
	}
	for _, kind := range []string{rec.Type, rec.IPAM.Type} {
		if _, err := findPlugin(kind, args.Path); err != nil {
			return fail(types.ErrPluginNotAvailable, "%v", err)
		}
	}
	_, err = p.run(p.ctx, call{kind: rec.Type, path: args.Path, conf: raw, limit: p.runLimit})
	if err != nil && !unknownVerb(err) {
		return fail(types.ErrPluginNotAvailable, "%s: %v", rec.Type, err)
	}
	return nil
}

// unknownVerb is the answer of a plugin that is older than the verb.
func unknownVerb(err error) bool {
	e := (*types.Error)(nil)
	return errors.As(err, &e) && strings.Contains(e.Msg, "unknown CNI_COMMAND")
}
