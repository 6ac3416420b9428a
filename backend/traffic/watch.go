package traffic

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"strings"
	"time"
)

const (
	monitorRetry = 200 * time.Millisecond // doubles up to monitorSlow while nft monitor does not live
	monitorSlow  = 5 * time.Second
	legacyPeriod = 300 * time.Millisecond // a legacy flush is noticed within this time
)

// Watch has a value soon after somebody changed rules that are, or bear on, ours. Our own writes poke too, which costs
// one Sync that finds nothing to do. The channel is closed when ctx ends.
func (m *Manager) Watch(ctx context.Context) <-chan struct{} {
	poked := make(chan struct{}, 1)
	poke := func() {
		select {
		case poked <- struct{}{}:
		default: // one is waiting already, and one is enough
		}
	}
	legacy := make(chan struct{})
	go func() {
		defer close(legacy)
		m.watchLegacy(ctx, poke)
	}()
	go func() {
		defer close(poked)
		m.watchNFT(ctx, poke)
		<-legacy
	}()
	return poked
}

// watchNFT keeps `nft monitor` running. It dies when events come faster than it reads, so each new one begins with a
// poke: what happened in between was not seen.
func (m *Manager) watchNFT(ctx context.Context, poke func()) {
	wait := monitorRetry
	for ctx.Err() == nil {
		start := time.Now()
		_ = m.monitor(ctx, poke) // why it ended is of no use: the next Sync meets the cause and says it
		if time.Since(start) > monitorSlow {
			wait = monitorRetry
		}
		sleep(ctx, wait)
		wait = min(2*wait, monitorSlow)
	}
}

// monitor runs `nft monitor` once, to its end.
func (m *Manager) monitor(ctx context.Context, poke func()) error {
	path, err := m.host.find("nft")
	if err != nil {
		return err
	}
	m.host.note("nft", "monitor")
	cmd := exec.CommandContext(ctx, path, "monitor")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := m.host.inside(cmd.Start); err != nil {
		return err
	}
	poke()
	readEvents(out, poke)
	return cmd.Wait()
}

// readEvents pokes for each line that concerns us, to the end of the stream.
func readEvents(out io.Reader, poke func()) {
	lines := bufio.NewReader(out)
	for {
		// A line may be longer than any buffer (a set with its elements): its beginning says enough.
		line, long, err := lines.ReadLine()
		if err != nil {
			return
		}
		if concerns(string(line)) {
			poke()
		}
		for long && err == nil {
			_, long, err = lines.ReadLine()
		}
	}
}

// concerns tells whether a line of `nft monitor` is about our table, about FORWARD or INPUT of iptables-nft, or about a
// whole table. kube-proxy's constant changes to chains of its own are not worth a Sync.
func concerns(line string) bool {
	words := strings.Fields(line) // "add rule inet weft postrouting ...", "delete table ip filter"
	if len(words) < 4 || strings.HasPrefix(line, "#") {
		return false
	}
	switch object, table := words[1], words[2]+" "+words[3]; {
	case object == "table" || table == "inet "+TableName:
		return true
	case table != "ip filter" && table != "ip6 filter":
		return false
	}
	return len(words) > 4 && (words[4] == "FORWARD" || words[4] == "INPUT" || words[4] == chainName)
}

// watchLegacy looks at the size of the iptables-legacy filter tables, for that engine sends no events.
func (m *Manager) watchLegacy(ctx context.Context, poke func()) {
	before := m.legacyState()
	for ctx.Err() == nil {
		sleep(ctx, legacyPeriod)
		if now := m.legacyState(); now != before {
			before = now
			poke()
		}
	}
}

// legacyState is the size of both filter tables; zero where there is none.
func (m *Manager) legacyState() [2]legacyInfo {
	var state [2]legacyInfo
	for i, f := range families() {
		if !m.host.inUse(f, engineLegacy, "filter", nil) {
			continue
		}
		_ = m.host.inside(func() (err error) {
			state[i], err = legacySize(f, "filter")
			return err
		})
	}
	return state
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
