package daemon

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// podFamilies names the pods that were made while the node had only one of its families: they stay without the other one, and
// only a new pod gets both.
type podFamilies struct {
	results string // libcni's folder
	board   *board // nil: nobody is told
	count   prometheus.Gauge

	seen  string                 // of the last look, for the names cost a read of every result
	event atomic.Pointer[string] // what the cluster is told, once for all such pods: nil when there are none
}

const (
	halfPods       = "pods' families" // the topic
	reasonHalfPods = "PodsWithoutFamily"
)

func newPodFamilies(results string, b *board, m *metrics) *podFamilies {
	count := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "weft_pods_without_family", Help: "Pods of this node that were made while it lacked one of the families which it has now.",
	})
	m.registry.MustRegister(count)
	return &podFamilies{results: results, board: b, count: count}
}

// look is called after each good round of the data plane.
func (p *podFamilies) look(a *applied, host kernel.Host) {
	if p == nil || p.board == nil {
		return
	}
	if !a.uses(subnet.IPv4) || !a.uses(subnet.IPv6) {
		p.tell(nil, "")
		p.seen = ""
		return
	}
	ends := [2]netip.Prefix{a.Net.Ends[subnet.IPv4].PodCIDR, a.Net.Ends[subnet.IPv6].PodCIDR}
	here := map[string]int{}
	for _, l := range host.Links {
		if l.Kind == "veth" {
			here[l.Name] = l.Index
		}
	}
	info, err := os.Stat(p.results)
	if err != nil {
		return // another runtime's, or flannel's manifest: who the pods are cannot be seen
	}
	seen := fmt.Sprint(ends, here, info.ModTime())
	if seen == p.seen {
		return
	}
	p.seen = seen
	names, lacked := p.halves(ends, here)
	p.tell(names, lacked)
}

// halves lists the pods that live here and lack a family, and the families that are lacked.
func (p *podFamilies) halves(own [2]netip.Prefix, here map[string]int) (names []string, lacked string) {
	files, _ := filepath.Glob(filepath.Join(p.results, "*")) // the pattern is good
	var families []string
	for _, file := range files {
		var a attachment
		text, err := os.ReadFile(file)
		if err != nil || json.Unmarshal(text, &a) != nil || a.arg("K8S_POD_NAME") == "" || !a.lives(here) {
			continue
		}
		has := a.families(own)
		for _, f := range subnet.Families() {
			if has[1-f] && !has[f] {
				names = append(names, a.name())
				families = append(families, f.String())
			}
		}
	}
	slices.Sort(names)
	slices.Sort(families)
	return slices.Compact(names), strings.Join(slices.Compact(families), " or ") // a pod may have two interfaces of ours
}

// tell says who they are: in full to whoever asks this node, and to the cluster once, so that it does not hear of each pod that
// is made anew.
func (p *podFamilies) tell(names []string, lacked string) {
	p.count.Set(float64(len(names)))
	if len(names) == 0 {
		p.event.Store(nil)
		p.board.note(halfPods, "")
		return
	}
	list := slices.Clone(names[:min(maxNamed, len(names))])
	if more := len(names) - maxNamed; more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	text := fmt.Sprintf("these pods were made while this node had no %s, and stay without it: delete them, so that they are made anew: %s",
		lacked, strings.Join(list, ", "))
	p.board.note(halfPods, text)
	p.event.CompareAndSwap(nil, &text)
}

// told is what the cluster is told; empty when there are no such pods.
func (p *podFamilies) told() string {
	if p == nil {
		return ""
	}
	if text := p.event.Load(); text != nil {
		return *text
	}
	return ""
}

// lives reports whether the host's end of an attachment is there: a result outlives a pod that a reboot ended.
func (a attachment) lives(here map[string]int) bool {
	for _, i := range a.Result.Interfaces {
		if _, ok := here[i.Name]; ok && i.Sandbox == "" {
			return true
		}
	}
	return false
}

// families are those in which an attachment has an address of the node's.
func (a attachment) families(own [2]netip.Prefix) (has [2]bool) {
	for _, ip := range a.Result.IPs {
		prefix, err := netip.ParsePrefix(ip.Address)
		if err != nil {
			continue
		}
		for f, cidr := range own {
			has[f] = has[f] || cidr.Contains(prefix.Addr())
		}
	}
	return has
}
