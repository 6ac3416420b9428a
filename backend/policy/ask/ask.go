// Package ask answers questions about policies from the live objects of the cluster and from the kernel of this node: what
// enforcing them cuts (Audit), and what becomes of one connection and why (Trace). It changes nothing.
package ask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/watch"
	"github.com/weft-cni/weft/subnet/kube"
)

// patience is how long the API server has to give all that policies depend on.
const patience = 30 * time.Second

// ErrDenied tells that the traced connection is not allowed; the text is on Options.Out by then.
var ErrDenied = errors.New("denied")

// Options say whom to ask, and where the answer goes.
type Options struct {
	Kube kube.ClientOptions
	Node kube.NameSource // which node this is; the zero value outside of one, where no pod is of this node
	Out  io.Writer
}

// cluster is what both verbs start from.
type cluster struct {
	world    policy.World
	problems []watch.Problem
}

// load watches until the World is complete.
func load(ctx context.Context, o Options) (cluster, error) {
	client, err := kube.NewClient(o.Kube)
	if err != nil {
		return cluster{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	node, err := kube.NodeName(ctx, client, o.Node, nil)
	if err != nil && !errors.Is(err, kube.ErrNoName) {
		return cluster{}, err
	}
	source := watch.New(watch.Config{Client: client, NodeName: node, Log: slog.New(slog.DiscardHandler)})
	ended := make(chan error, 1)
	go func() { ended <- source.Run(ctx) }()
	for {
		if w, complete := source.World(); complete {
			return cluster{world: w, problems: source.Problems()}, nil
		}
		select {
		case <-source.Changed():
		case err := <-ended:
			if err == nil {
				err = fmt.Errorf("ask the API server: %s", source.Reason())
			}
			return cluster{}, err
		}
	}
}

// kernel tells whether the rules of this node are those of the World.
func kernel(ctx context.Context, w policy.World) (string, error) {
	m := policy.New(netfilter.Host{})
	var least []string
	for i, mode := range []struct {
		name string
		cfg  policy.Config
	}{
		{"enforced", policy.Config{}},
		{"enforced when a connection is set up", policy.Config{KeepEstablished: true}},
		{"audit: counted, not dropped", policy.Config{Audit: true}},
	} {
		texts, err := m.Check(ctx, w, mode.cfg)
		switch {
		case err != nil:
			return "", err
		case len(texts) == 0:
			return "as the policies want (" + mode.name + ")", nil
		case i == 0 || len(texts) < len(least):
			least = texts
		}
	}
	return fmt.Sprintf("DIFFERS in %d places; the first: %s", len(least), least[0]), nil
}
