package traffic

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	listenRetry  = time.Second            // between two attempts to listen to the kernel
	legacyPeriod = 200 * time.Millisecond // a legacy flush is noticed within this time
)

// Watch has a value soon after somebody changed rules that are, or bear on, ours. Our own writes poke too, which costs
// one Sync that finds nothing to do. The channel is closed when ctx ends. The slow poll of whoever calls Sync stays
// necessary: it is the net for what Watch cannot see.
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
		for ctx.Err() == nil {
			_ = m.listen(ctx, poke) // why it ended is of no use: the next Sync meets the cause and says it
			sleep(ctx, listenRetry)
		}
		<-legacy
	}()
	return poked
}

// listen hears the kernel's nftables events until ctx ends or the socket fails.
func (m *Manager) listen(ctx context.Context, poke func()) error {
	var file *os.File
	if err := m.host.Inside(func() (err error) {
		file, err = openNetfilter(groupNFTables)
		return err
	}); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { file.Close() })()
	defer file.Close()
	poke() // whatever happened before we listened was not heard
	return hear(file, poke)
}

// hear pokes for each event that concerns us, until the socket is closed.
func hear(file *os.File, poke func()) error {
	buf := make([]byte, 1<<17)
	for {
		n, err := file.Read(buf)
		if errors.Is(err, unix.ENOBUFS) {
			poke() // events came faster than we read, and some are lost
			continue
		}
		if err != nil {
			return err
		}
		if hears(buf[:n]) {
			poke()
		}
	}
}

// hears tells whether one of the messages concerns us.
func hears(b []byte) bool {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return true // better one Sync too many
	}
	for _, m := range messages {
		if e, ok := parseEvent(m); ok && concerns(e) {
			return true
		}
	}
	return false
}

// concerns tells whether an event is about our table, about FORWARD or INPUT of iptables-nft, or about a whole table.
// kube-proxy's constant changes to chains of its own are not worth a Sync.
func concerns(e nfEvent) bool {
	switch {
	case e.kind == unix.NFT_MSG_NEWTABLE || e.kind == unix.NFT_MSG_DELTABLE || e.table == "inet "+TableName:
		return true
	case e.table != "ip filter" && e.table != "ip6 filter":
		return false
	}
	return e.chain == "FORWARD" || e.chain == "INPUT" || e.chain == chainName
}

// watchLegacy looks at the size of the iptables-legacy filter tables and at FORWARD's policy, for that engine sends no events.
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

// legacyLook is what watchLegacy sees of one table.
type legacyLook struct {
	info   legacyInfo
	policy int32
}

// legacyState is the look of both filter tables; zero where there is none.
func (m *Manager) legacyState() [2]legacyLook {
	var state [2]legacyLook
	for i, f := range families() {
		if !m.host.inUse(f, engineLegacy, "filter", nil) {
			continue
		}
		_ = m.host.Inside(func() (err error) {
			if state[i].info, err = legacySize(f, "filter"); err == nil {
				state[i].policy, err = legacyPolicy(f, state[i].info)
			}
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
