package traffic

import (
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/netfilter"
)

// returnQuiet is how long flannel has to write nothing before its rules are removed again: one that runs puts them back within
// seconds, and would be kept busy.
const returnQuiet = 5 * time.Minute

// returns knows of rules of flannel's that were written after we had removed all of them. Then a flannel runs on this node
// besides us, as where a distribution brings one along (K-01), and takes no notice of our lock.
type returns struct {
	quiet time.Duration
	at    atomic.Int64 // when the last one was written, in nanoseconds since 1970; 0 is never. Watch writes it
	done  int64        // the at up to which all were removed
}

// hear notes a rule of flannel's.
func (r *returns) hear(c netfilter.Change) {
	if c.Kind == unix.NFT_MSG_NEWRULE && !c.Lost && !c.End && ofFlannel(c) {
		r.at.Store(time.Now().UnixNano())
	}
}

func ofFlannel(c netfilter.Change) bool {
	rows := families()
	return slices.ContainsFunc(rows[:], func(f family) bool {
		ours := c.Table == f.Proto+" nat" || c.Table == f.Proto+" filter"
		return ours && isFlannel(c.Chain) || c.Table == f.Proto+" "+f.FlannelNF
	})
}

// due tells whether there are rules to be removed again.
func (r *returns) due() bool {
	at := r.at.Load()
	return at != r.done && time.Since(time.Unix(0, at)) >= r.quiet
}

// problems names the other agent while it is there.
func (r *returns) problems() []string {
	if r.at.Load() == r.done {
		return nil
	}
	return []string{"flannel writes rules on this node too: remove its DaemonSet (kubectl get daemonsets -A), or switch off the one that the " +
		"distribution brings along"}
}
