package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/traffic"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

// rulesModel judges traffic rules: after whatever was done to them, they are as if they had just been made, which is
// what they are in a namespace kept for that.
type rulesModel struct{ scratch *nstest.NS }

func (r *rulesModel) judge(w *World, m *Machine, node Record) error {
	box, ok := m.box.Box.(*netnsBox)
	if !ok {
		return errors.New("only a namespace has rules")
	}
	cfg := traffic.Config{
		Masquerade: true, RandomFully: true, Forward: true, ForwardPlace: traffic.PlaceAuto, Port: m.settings.Port,
	}
	for _, f := range w.lane.Families() {
		own, err := netip.ParsePrefix(node.Half[f].CIDR)
		if err != nil {
			continue // the node has no part in the family
		}
		cfg.Nets[f] = traffic.Net{Network: lane.Network(f), PodCIDR: own}
		for _, p := range peers(f, m.name, own, w.cluster.view()) {
			if !slices.Contains(speaks(p, p.Type), subnet.VXLAN) {
				continue // it sends nothing to our port
			}
			port, err := strconv.ParseUint(cmp.Or(p.Port, strconv.Itoa(int(m.settings.Port))), 10, 16)
			if err != nil {
				return err
			}
			ip, err := netip.ParseAddr(p.Half[f].IP)
			if err != nil {
				return err
			}
			cfg.Peers = append(cfg.Peers, netip.AddrPortFrom(ip, uint16(port)))
		}
	}
	have, err := table(box.ns)
	if err != nil {
		return err
	}
	// A daemon that was started without an API server may have learned of its former ports from its disk, or not at all.
	var errs []error
	for _, former := range [][]uint16{m.former, nil} {
		cfg.Mixed = former
		want, err := r.fresh(cfg)
		if err != nil {
			return err
		}
		diff := gocmp.Diff(want, have)
		if diff == "" {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: rules (+) differ from freshly made ones (-):\n%s", m.name, diff))
	}
	return errs[0]
}

// fresh are the rules as they are made in an empty namespace.
func (r *rulesModel) fresh(cfg traffic.Config) ([]string, error) {
	if _, err := r.scratch.Try("nft", "flush", "ruleset"); err != nil {
		return nil, err
	}
	if _, err := traffic.New(traffic.Options{NetNS: r.scratch.Path()}).Sync(context.Background(), cfg); err != nil {
		return nil, err
	}
	return table(r.scratch)
}

// table is our nft table, line by line, with the elements of its sets one a line and sorted.
func table(ns *nstest.NS) ([]string, error) {
	text, err := ns.Try("nft", "--stateless", "list", "table", "inet", traffic.TableName)
	if err != nil {
		return nil, err
	}
	var lines, elements []string
	open := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "elements = {") {
			open, line = true, strings.TrimPrefix(line, "elements = {")
		}
		if !open {
			lines = append(lines, line)
			continue
		}
		rest, last := strings.CutSuffix(line, "}")
		for _, e := range strings.Split(rest, ",") {
			if e = strings.TrimSpace(e); e != "" {
				elements = append(elements, e)
			}
		}
		if last {
			slices.Sort(elements)
			lines, elements, open = append(lines, elements...), nil, false
		}
	}
	return lines, nil
}
