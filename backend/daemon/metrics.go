package daemon

import (
	"cmp"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weft-cni/weft/subnet"
)

// metrics are what /metrics shows. Seconds and totals, as Prometheus names them.
type metrics struct {
	registry *prometheus.Registry
	peers    prometheus.Gauge
	ways     *prometheus.GaugeVec
	problems *prometheus.GaugeVec
	duration *prometheus.HistogramVec
	errors   *prometheus.CounterVec
	success  *prometheus.GaugeVec
	changes  *prometheus.CounterVec
	drift    *prometheus.CounterVec
	freed    *prometheus.CounterVec

	enforced       prometheus.Gauge
	unguarded      prometheus.Gauge
	cut            prometheus.Counter
	policyProblems prometheus.Gauge
}

func newMetrics(v Version, b *board) *metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		peers:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_peers", Help: "Peers programmed into the kernel."}),
		ways: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weft_ways", Help: "Peers by the backend that carries packets to them, and by family; none: no backend can.",
		}, []string{"backend", "family"}),
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weft_problems", Help: "Nodes that cannot be taken as they are, by reason."}, []string{"reason"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weft_sync_duration_seconds", Help: "Time one round of a loop takes.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}, []string{"loop"}),
		errors:  vec("weft_sync_errors_total", "Rounds of a loop that ended with an error.", "loop"),
		success: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weft_last_success_timestamp_seconds", Help: "When a loop last ended a round without error."}, []string{"loop"}),
		changes: vec("weft_kernel_changes_total", "Changes made to the kernel, by loop.", "loop"),
		drift:   vec("weft_drift_repaired_total", "Changes made although nothing new was wanted: somebody else had changed the kernel.", "loop"),
		freed:   vec("weft_reservations_total", "Address reservations freed or restored by the collector.", "action"),
	}
	m.enforced = prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_policy_enforced", Help: "1 while NetworkPolicies of the API server are in the kernel."})
	m.cut = prometheus.NewCounter(prometheus.CounterOpts{Name: "weft_policy_connections_cut_total", Help: "Connections cut because policies do not allow them any more."})
	m.unguarded = prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_policy_unguarded", Help: "1 while somebody else's flush of nftables would let packets pass until policies are written again."})
	m.policyProblems = prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_policy_problems", Help: "Parts of policies that cannot be enforced as they were meant."})
	build := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weft_build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": v.Release, "commit": v.Commit, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
	ready := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weft_ready", Help: "1 while /readyz says ready."}, func() float64 {
		if b.verdict().Ready {
			return 1
		}
		return 0
	})
	m.registry.MustRegister(m.peers, m.ways, m.problems, m.duration, m.errors, m.success, m.changes, m.drift, m.freed, m.enforced, m.unguarded, m.cut, m.policyProblems, build, ready,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// round notes the end of one round of a loop.
func (m *metrics) round(loop string, err error, took time.Duration) {
	m.duration.WithLabelValues(loop).Observe(took.Seconds())
	if err != nil {
		m.errors.WithLabelValues(loop).Inc()
		return
	}
	m.success.WithLabelValues(loop).SetToCurrentTime()
}

// went notes by which way each peer is reached, in the families that it has a part in.
func (m *metrics) went(a *applied) {
	m.ways.Reset()
	for _, p := range a.Snapshot.Peers {
		for _, f := range subnet.Families() {
			if a.uses(f) && !p.Endpoints[f].IsZero() {
				m.ways.WithLabelValues(cmp.Or(a.Plan.Ways[p.Name][f].Kind, "none"), f.String()).Inc()
			}
		}
	}
}

// changed notes n changes of a loop; drift says that nobody had asked for them.
func (m *metrics) changed(loop string, n int, drift bool) {
	m.changes.WithLabelValues(loop).Add(float64(n))
	if drift {
		m.drift.WithLabelValues(loop).Add(float64(n))
	}
}
