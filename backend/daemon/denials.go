package daemon

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weft-cni/weft/backend/policy"
)

// mostDenials bounds the series: the policies that denied most are shown by name, the others together.
const mostDenials = 500

// denials shows what policies denied, as the kernel counts it.
type denials struct {
	packets *prometheus.Desc
	counts  func(context.Context) ([]policy.Count, error)
}

func newDenials(counts func(context.Context) ([]policy.Count, error)) denials {
	return denials{
		packets: prometheus.NewDesc("weft_policy_denied_packets_total",
			"Packets that a policy denied, by policy (namespace/name, or the name of a ClusterNetworkPolicy) and direction. What none of several policies allowed is counted by each.",
			[]string{"policy", "direction"}, nil),
		counts: counts,
	}
}

// Describe implements prometheus.Collector.
func (d denials) Describe(out chan<- *prometheus.Desc) { out <- d.packets }

// Collect implements prometheus.Collector. Counters that cannot be read are no reason to show nothing at all.
func (d denials) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	counts, err := d.counts(ctx)
	if err != nil {
		return
	}
	for _, c := range bounded(counts, mostDenials) {
		out <- prometheus.MustNewConstMetric(d.packets, prometheus.CounterValue, float64(c.Packets), c.Policy, c.Direction.String())
	}
}

// bounded keeps the most largest counts, and adds the others up under the name "others".
func bounded(counts []policy.Count, most int) []policy.Count {
	if len(counts) <= most {
		return counts
	}
	counts = slices.SortedStableFunc(slices.Values(counts), func(a, b policy.Count) int { return cmp.Compare(b.Packets, a.Packets) })
	rest := [2]policy.Count{
		{Policy: "others", Direction: policy.Ingress}, {Policy: "others", Direction: policy.Egress},
	}
	for _, c := range counts[most:] {
		rest[c.Direction].Packets += c.Packets
		rest[c.Direction].Bytes += c.Bytes
	}
	return append(slices.Clone(counts[:most]), rest[:]...)
}
