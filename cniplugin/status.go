package main

import (
	"errors"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
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
	rec, err := recordOf(c, n)
	if err != nil {
		return fail(types.ErrPluginNotAvailable, "%v", err)
	}
	for _, kind := range []string{rec.Type, rec.IPAM.Type} {
		if _, err := findPlugin(kind, args.Path); err != nil {
			return fail(types.ErrPluginNotAvailable, "%v", err)
		}
	}
	_, err = p.run(p.ctx, call{kind: rec.Type, path: args.Path, conf: rec.Raw, limit: p.runLimit})
	if err != nil && !unknownVerb(err) {
		return fail(types.ErrPluginNotAvailable, "%s: %v", rec.Type, err)
	}
	p.tellHost(c.SubnetFile)
	return nil
}

// unknownVerb is the answer of a plugin that is older than the verb.
func unknownVerb(err error) bool {
	e := (*types.Error)(nil)
	return errors.As(err, &e) && strings.Contains(e.Msg, "unknown CNI_COMMAND")
}
