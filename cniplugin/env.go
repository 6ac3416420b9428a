package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/weft-cni/weft/subnet"
)

// pollEnv is how often ADD looks for subnet.env: the file is on a tmpfs, and a pod waits.
const pollEnv = 50 * time.Millisecond

// loadEnv reads subnet.env.
func loadEnv(path string) (nodeNet, error) {
	env, err := subnet.LoadEnv(path)
	if err != nil {
		return nodeNet{}, err
	}
	n := nodeNet{MTU: env.MTU, IPMasq: env.IPMasq}
	for _, f := range subnet.Families() {
		if p := env.Networks[f]; p.IsValid() {
			n.Networks = append(n.Networks, p)
		}
		for _, p := range env.MoreNetworks {
			if subnet.FamilyOf(p.Addr()) == f {
				n.Networks = append(n.Networks, p)
			}
		}
		if p := env.Subnets[f]; p.IsValid() {
			n.Subnets = append(n.Subnets, p.Masked())
		}
	}
	return n, nil
}

// waitEnv is loadEnv for ADD. On a boot the runtime may be quicker than the agent, so it waits a while before it
// answers that the runtime should try again, and why.
func (p plugin) waitEnv(path string) (nodeNet, error) {
	ctx, cancel := context.WithTimeout(p.ctx, p.envWait)
	defer cancel()
	tick := time.NewTicker(pollEnv)
	defer tick.Stop()
	for {
		n, err := loadEnv(path)
		if err == nil {
			return n, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return n, fail(types.ErrTryAgainLater, "%v; waited %v for it; %s", err, p.envWait, agentSays(path))
		}
	}
}

// agentStatus reads the agent's word beside subnet.env.
func agentStatus(subnetFile string) (subnet.Status, error) {
	b, err := os.ReadFile(filepath.Join(filepath.Dir(subnetFile), subnet.StatusName))
	if err != nil {
		return subnet.Status{}, fmt.Errorf("read the agent's status: %w", err)
	}
	return subnet.ParseStatus(b)
}

// agentSays is the agent's reason in words, or what to look at when it says nothing.
func agentSays(subnetFile string) string {
	const look = "look at the log of this node's kube-flannel pod"
	s, err := agentStatus(subnetFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "the agent has not reported since this node booted: is its pod running? " + look
	case err != nil:
		return fmt.Sprintf("%v; %s", err, look)
	case s.Ready:
		return "the agent said at " + s.Time.Format(time.RFC3339) + " that it is ready; " + look
	}
	return "the agent said at " + s.Time.Format(time.RFC3339) + ": " + s.Reason
}

// reasonNotReady is empty when pods can be connected.
func reasonNotReady(subnetFile string) string {
	if _, err := loadEnv(subnetFile); err != nil {
		return fmt.Sprintf("%v; %s", err, agentSays(subnetFile))
	}
	s, err := agentStatus(subnetFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "" // another agent, which writes no status: subnet.env alone counts
	case err != nil:
		return err.Error()
	case !s.Ready:
		return agentSays(subnetFile)
	}
	return devicesDown(s)
}

// devicesDown is empty when each device is up that pods need, in every family.
func devicesDown(s subnet.Status) string {
	var down []string
	for _, name := range s.Needs() {
		if !linkIsUp(name) {
			down = append(down, name)
		}
	}
	since := s.Time.Format(time.RFC3339)
	switch len(down) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("the overlay device %s is missing or down; the agent was ready at %s", down[0], since)
	}
	return fmt.Sprintf("the overlay devices %s are missing or down; the agent was ready at %s", strings.Join(down, ", "), since)
}
