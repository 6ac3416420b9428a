package daemon

import "github.com/prometheus/client_golang/prometheus"

// apiMetric shows how often each result of a request to the API server has come. A storm of failures is one line in the
// log and its size here.
type apiMetric struct {
	desc    *prometheus.Desc
	results func() map[string]int64
}

func newAPIMetric(results func() map[string]int64) apiMetric {
	return apiMetric{
		desc: prometheus.NewDesc("weft_api_requests_total",
			"Requests to the API server by result: an HTTP status, unreachable, or stale for a list older than what is known.", []string{"result"}, nil),
		results: results,
	}
}

// Describe implements prometheus.Collector.
func (a apiMetric) Describe(out chan<- *prometheus.Desc) { out <- a.desc }

// Collect implements prometheus.Collector.
func (a apiMetric) Collect(out chan<- prometheus.Metric) {
	for result, n := range a.results() {
		out <- prometheus.MustNewConstMetric(a.desc, prometheus.CounterValue, float64(n), result)
	}
}
