package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// tellHost leaves word for the agent of what only a program on the host can see: whether its plugins make rules by
// iptables or by nftables. The agent names that to portmap in the conflist, for portmap asks iptables twice in every
// call, pods without ports included, when nobody told it. The word is portmap's own choice, made once a boot, so that it
// does not change while pods have ports; only when the program has gone is it made again, as portmap would.
func (p plugin) tellHost(subnetFile string) {
	h, err := subnet.LoadHost(subnetFile)
	if err == nil && h.Rules != "" && p.program(programOf(h.Rules)) != "" {
		return
	}
	for _, rules := range []string{"iptables", "nftables"} {
		works, known := p.makesRules(rules)
		if !known {
			return // whoever has the lock keeps it long; the next pod asks again
		}
		if !works {
			continue
		}
		b, err := subnet.Host{Rules: rules}.Render()
		if err == nil {
			err = subnet.WriteFile(filepath.Join(filepath.Dir(subnetFile), subnet.HostName), b, 0o644)
		}
		if err != nil {
			p.note("tell the agent of the host: %v", err)
		}
		return
	}
}

func programOf(rules string) string {
	if rules == "nftables" {
		return "nft"
	}
	return rules
}

// makesRules tries a program as portmap does: one that is there may be of no use on this kernel. One that does not answer
// in time says nothing: iptables waits for a lock that kube-proxy may hold for seconds.
func (p plugin) makesRules(rules string) (works, known bool) {
	file := p.program(programOf(rules))
	if file == "" {
		return false, true
	}
	args := []string{"--wait", "-t", "filter", "-S", "INPUT", "1"}
	if rules == "nftables" {
		args = []string{"--check", "add", "table", "ip", "weft_try"}
	}
	quiet := p
	quiet.stderr = io.Discard
	ctx, cancel := context.WithTimeout(p.ctx, p.askTime)
	defer cancel()
	_, err := quiet.runOnce(ctx, file, call{kind: rules, args: args})
	return err == nil, ctx.Err() == nil
}

// program looks a program up in PATH; empty when there is none.
func (p plugin) program(name string) string {
	path := ""
	for _, kv := range p.environ {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && filepath.IsAbs(file) {
			return file
		}
	}
	return ""
}
