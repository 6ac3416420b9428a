package daemon

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// startGrace is how long a restarted agent lets its predecessor's good word stand: pods can be connected meanwhile, and
// a node that turned NotReady at every upgrade would have its pods moved for nothing.
const startGrace = 30 * time.Second

// aside lists the parts that keep no pod from being connected once the node's network is up. The plugin's STATUS decides
// whether the kubelet calls the node Ready: a typo in net-conf.json, an API server that is away or one peer that cannot be
// programmed must not have all pods of the node evicted.
func aside() []string {
	return []string{partConf, partAPI, partPeers, partAnnounce, partHealth, partNode}
}

// status writes weft.json, the agent's word to the CNI plugin.
type status struct {
	file    string
	board   *board
	device  func() string
	started time.Time
	written subnet.Status
}

func (s *status) sync(context.Context) error {
	next := subnet.Status{Device: s.device(), Ready: s.board.verdictBut(aside()...).Ready}
	if !next.Ready {
		next.Reason = s.board.verdict().String()
	}
	if !next.Ready && time.Since(s.started) < startGrace && s.predecessorReady() {
		return nil
	}
	next.Time = s.written.Time
	if next == s.written && exists(s.file) {
		return nil
	}
	next.Time = time.Now().UTC().Truncate(time.Second)
	data, err := next.Render()
	if err != nil {
		return err
	}
	if err := subnet.WriteFile(s.file, data, 0o644); err != nil {
		return fmt.Errorf("write the status for the CNI plugin: %w", err)
	}
	s.written = next
	return nil
}

// predecessorReady tells whether the file of the agent before us says ready. Once we have written, its word is void.
func (s *status) predecessorReady() bool {
	if s.written != (subnet.Status{}) {
		return false
	}
	data, err := os.ReadFile(s.file)
	if err != nil {
		return false
	}
	old, err := subnet.ParseStatus(data)
	return err == nil && old.Ready
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
