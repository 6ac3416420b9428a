package daemon

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// startGrace is how long a restarted agent lets its predecessor's good word stand: pods can be connected meanwhile, and
// a node that turned NotReady at every upgrade would have its pods moved for nothing.
const startGrace = 30 * time.Second

// flapGrace is how long a good word of our own stands while something is wrong: a round that fails once, or a new
// net-conf.json being taken, is over before the kubelet need hear of it.
const flapGrace = 5 * time.Second

// aside lists the parts that keep no pod from being connected once the node's network is up. The plugin's STATUS decides
// whether the kubelet calls the node Ready: a typo in net-conf.json, an API server that is away or one peer that cannot be
// programmed must not have all pods of the node evicted.
func aside() []string {
	return []string{partConf, partAPI, partPeers, partAnnounce, partHealth, partNode, partCNI, partStatus, partFamily, partFamilySwitch}
}

// status writes weft.json, the agent's word to the CNI plugin.
type status struct {
	file    string
	files   subnet.Writer
	board   *board
	devices func() []string
	started time.Time

	written subnet.Status
	text    []byte    // of written: what somebody else puts there is overwritten
	bad     time.Time // since when the board has not been ready; zero while it is
}

func (s *status) sync(context.Context) error {
	devices := s.devices()
	next := subnet.Status{Devices: devices, Ready: s.board.verdictBut(aside()...).Ready, Time: s.written.Time}
	if len(devices) > 0 {
		next.Device = devices[0]
	}
	if next.Ready {
		s.bad = time.Time{}
	} else {
		next.Reason = s.board.verdict().String()
		if s.stands() {
			return nil
		}
	}
	if have, err := os.ReadFile(s.file); err == nil && next.Equal(s.written) && bytes.Equal(have, s.text) {
		return nil
	}
	next.Time = time.Now().UTC().Truncate(time.Second)
	data, err := next.Render()
	if err != nil {
		return err
	}
	if err := s.files.WriteFile(s.file, data, 0o644); err != nil {
		return fmt.Errorf("write the status for the CNI plugin: %w", err)
	}
	s.written, s.text = next, data
	return nil
}

// stands tells whether a good word, our own or that of the agent before us, is left standing although the board is not
// ready now.
func (s *status) stands() bool {
	if s.bad.IsZero() {
		s.bad = time.Now()
	}
	if s.written.Ready {
		return time.Since(s.bad) < flapGrace
	}
	return time.Since(s.started) < startGrace && s.predecessorReady()
}

// predecessorReady tells whether the file of the agent before us says ready. Once we have written, its word is void.
func (s *status) predecessorReady() bool {
	if !s.written.Equal(subnet.Status{}) {
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
