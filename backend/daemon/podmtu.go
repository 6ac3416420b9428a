package daemon

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/underlay"
)

// podMTU names the pods that were made before the overlay's MTU became smaller. Their large packets are refused with
// "fragmentation needed", which most programs understand and some do not; only a new pod gets the new MTU.
type podMTU struct {
	results string // libcni's folder
	board   *board // nil: nobody is told
	count   prometheus.Gauge

	seen string // devices and MTU of the last look, for the names cost a read of every result
}

const (
	widePods = "pods' MTU" // the topic
	maxNamed = 10          // pods that are named; the rest is counted
)

func newPodMTU(results string, b *board, m *metrics) podMTU {
	count := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "weft_pods_mtu_too_large", Help: "Pods of this node whose MTU is larger than the overlay's, which became smaller after they were made.",
	})
	m.registry.MustRegister(count)
	return podMTU{results: results, board: b, count: count}
}

// look is called after each good round of the data plane.
func (p *podMTU) look(a *applied, host kernel.Host) {
	if p.board == nil {
		return
	}
	var own []netip.Prefix
	for _, e := range a.Net.Ends {
		if !e.IsZero() {
			own = append(own, e.PodCIDR)
		}
	}
	mtu := a.Plan.PodMTU
	wide := underlay.WiderPods(mtu, own, host)
	p.count.Set(float64(len(wide)))
	if seen := fmt.Sprint(mtu, wide); seen != p.seen {
		p.seen = seen
		p.board.note(widePods, p.explain(mtu, wide))
	}
}

func (p *podMTU) explain(mtu int, wide []kernel.HostLink) string {
	if len(wide) == 0 {
		return ""
	}
	pods := podNames(p.results)
	var names []string
	for _, l := range wide[:min(maxNamed, len(wide))] {
		name := pods[l.Name]
		if name == "" {
			name = "the pod on " + l.Name
		}
		names = append(names, fmt.Sprintf("%s (%d)", name, l.MTU))
	}
	if more := len(wide) - maxNamed; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("these pods were made before the MTU became %d; their larger packets are refused with \"fragmentation needed\", "+
		"so restart them if connections hang: %s", mtu, strings.Join(names, ", "))
}

// attachment is what a result of libcni tells of a pod.
type attachment struct {
	CNIArgs [][2]string `json:"cniArgs"`
	Result  struct {
		Interfaces []struct {
			Name    string `json:"name"`
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
	} `json:"result"`
}

func (a attachment) arg(key string) string {
	i := slices.IndexFunc(a.CNIArgs, func(pair [2]string) bool { return pair[0] == key })
	if i < 0 {
		return ""
	}
	return a.CNIArgs[i][1]
}

// name is the pod's.
func (a attachment) name() string { return a.arg("K8S_POD_NAMESPACE") + "/" + a.arg("K8S_POD_NAME") }

// podNames tells, by the runtime's results, which pod is behind which device of the host: namespace/name by device. What
// cannot be read is left out.
func podNames(results string) map[string]string {
	files, _ := filepath.Glob(filepath.Join(results, "*")) // the pattern is good
	out := map[string]string{}
	for _, file := range files {
		var a attachment
		text, err := os.ReadFile(file)
		if err != nil || json.Unmarshal(text, &a) != nil || a.arg("K8S_POD_NAME") == "" {
			continue
		}
		for _, i := range a.Result.Interfaces {
			if i.Sandbox == "" {
				out[i.Name] = a.name()
			}
		}
	}
	return out
}
