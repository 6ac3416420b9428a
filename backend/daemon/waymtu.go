package daemon

import (
	"context"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weft-cni/weft/backend/underlay"
	"github.com/weft-cni/weft/subnet"
)

// wayMTU tells of ways to peers that the overlay's packets do not fit through in one piece. Nothing is lost by it, for the
// outer packets may be fragmented; but it is slow, and a firewall that drops fragments makes a riddle of it.
type wayMTU struct {
	board *board
	count prometheus.Gauge
}

const (
	narrowWays = "path MTU" // the topic
	maxWays    = 500        // peers that one round asks the kernel about: a way that is narrow is so for most of them
)

func newWayMTU(b *board, m *metrics) *wayMTU {
	count := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "weft_peers_path_mtu_too_small", Help: "Peers to which the way, as the kernel knows it, takes smaller packets than the overlay sends.",
	})
	m.registry.MustRegister(count)
	return &wayMTU{board: b, count: count}
}

// pathAsker is the kernel as far as ways go.
type pathAsker interface {
	PathMTU(ctx context.Context, to []netip.Addr) (map[netip.Addr]int, error)
}

func (w *wayMTU) look(ctx context.Context, a *applied, kernel pathAsker) error {
	total, text := 0, ""
	peers := a.Snapshot.Peers[:min(maxWays, len(a.Snapshot.Peers))]
	for _, f := range subnet.Families() {
		if a.Plan.Largest[f] == 0 {
			continue
		}
		var to []netip.Addr
		for _, p := range peers {
			if addr := p.Endpoints[f].PublicIP; addr.IsValid() {
				to = append(to, addr)
			}
		}
		found, err := kernel.PathMTU(ctx, to)
		if err != nil {
			return err
		}
		largest := a.Plan.Largest[f]
		narrow := underlay.NarrowPaths(f, largest, peers, found)
		total += len(narrow)
		if line := underlay.ExplainNarrow(largest, narrow); line != "" {
			text = line
		}
	}
	w.count.Set(float64(total))
	w.board.note(narrowWays, text)
	return nil
}
