package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy/guard"
)

// rereadPeriod is how often the kernel's table is read although nobody was heard to change it. A change that comes meanwhile
// waits, so reading may take one part in rereadShare of the time at most.
const (
	rereadPeriod = time.Minute
	rereadShare  = 300
	rereadMost   = 10 * time.Minute
)

// Manager keeps the table of one network namespace as the World wants it.
//
// What the kernel holds is read when it may be another than what was written last: at the first Sync, after anybody else's
// change to our table, after an error, and once a minute, or less often where it takes long. In between, Watch is trusted: each of
// our transactions signs itself by an element of a set, so that one without it is known to be another's. Reading 100,000
// elements costs half a second; a pod that comes is a write of one element. Without Watch every Sync reads.
//
// One goroutine at a time may call Sync, Check and Remove. Watch and Counters may be called beside them.
type Manager struct {
	host     netfilter.Host
	conn     knftables.Interface // for our table; nil until the first use
	compiler *Compiler
	sign     signature // of our last transaction

	written  Ruleset       // what the kernel holds, when known
	known    bool          //
	readAt   time.Time     //
	reads    time.Duration // how long the last reading took
	reread   time.Duration
	watching atomic.Bool
	foreign  atomic.Bool // somebody else changed our table since it was read
	gone     atomic.Bool // by deleting it: there is nothing to read, and no time to lose

	guard   *guard.Guard // nil without
	tags    tags
	cutting cutting
	latest  atomic.Pointer[Ruleset] // for Counters: the one in force
}

// Result is what a Sync did.
type Result struct {
	Changes []string // what was written, in words; empty when all was as wanted
	Cut     []string // the connections that are no longer allowed, and have been cut
	Drift   bool     // somebody else had changed what was written last

	// Unguarded says why there is no guard. The rules are in force all the same.
	Unguarded error
	// Tagged says why frames with tags go around the rules, between two pods of this node's bridge. They are in force all the same.
	Tagged error
}

// New makes a Manager for a host. It touches nothing yet.
func New(h netfilter.Host) *Manager {
	m := &Manager{host: h, compiler: NewCompiler(), reread: rereadPeriod, cutting: cutting{maybe: true, due: true}}
	m.sign = newSignature(fmt.Sprintf("%p %d", m, time.Now().UnixNano()))
	return m
}

// Sync makes the kernel's rules those of the World. When it returns without an error they are in force, and connections that
// they do not allow any more have been cut. What is right already is not written.
func (m *Manager) Sync(ctx context.Context, w World, c Config) (Result, error) {
	want := m.compiler.Compile(w, c)
	have, strange, err := m.have(ctx, want)
	if err != nil {
		return Result{}, err
	}
	d := difference(have, want, strange)
	narrows := d.less()
	if have.Empty() && len(strange) == 0 { // nothing passed with the guard's leave since somebody took the rules away
		narrows = Diff(m.written, want).less()
	}
	var res Result
	unguarded := m.narrow(want, c)
	if !d.Empty() {
		res.Drift = m.latest.Load() != nil && !difference(have, m.written, strange).Empty()
		if err := m.commit(ctx, d, want); err != nil {
			return Result{}, err
		}
		res.Changes = summary(d.Texts)
	}
	m.written, m.known = want, true
	m.latest.Store(&want)
	res.Unguarded = errors.Join(unguarded, m.widen(want, c, narrows))
	res.Tagged = m.tags.keep(ctx, m.host, m.tagsFor(want, c), m.watching.Load())
	res.Cut, err = m.cut(ctx, want, d, c.Held)
	return res, err
}

// tagsFor is the table of tags that rules need.
func (m *Manager) tagsFor(want Ruleset, c Config) string {
	if want.Empty() || c.Audit {
		return ""
	}
	return tagRules(c.Bridged)
}

// Check tells what Sync would change, without touching anything.
func (m *Manager) Check(ctx context.Context, w World, c Config) ([]string, error) {
	have, strange, err := m.read(ctx)
	if err != nil {
		return nil, err
	}
	return difference(have, Compile(w, c), strange).Texts, nil
}

// Remove takes our table away, whatever it holds.
func (m *Manager) Remove(ctx context.Context) ([]string, error) {
	res, err := m.Sync(ctx, World{}, Config{})
	return res.Changes, err
}

// Stands reports whether our table is there, of whatever run.
func (m *Manager) Stands(ctx context.Context) (bool, error) {
	text, err := m.host.List(ctx, "tables")
	return strings.Contains(text, `"`+TableName+`"`), err
}

// have is what the kernel holds: from memory while nobody else can have changed it.
func (m *Manager) have(ctx context.Context, want Ruleset) (Ruleset, []string, error) {
	foreign := m.foreign.Swap(false)
	if m.known && !foreign && m.watching.Load() && m.trusts(want) {
		return m.written, nil, nil
	}
	wasKnown := m.known
	m.known = false
	if gone := m.gone.Swap(false); gone && wasKnown && foreign {
		return Ruleset{}, nil, nil
	}
	began := time.Now()
	r, strange, err := m.read(ctx)
	m.readAt = time.Now()
	m.reads = m.readAt.Sub(began)
	return r, strange, err
}

// trusts tells whether what was read last is still good enough. When the time has come to read again, a change goes first, and
// the reading is left to the next Sync that has nothing to write.
func (m *Manager) trusts(want Ruleset) bool {
	due := max(m.reread, min(rereadShare*m.reads, rereadMost))
	age := time.Since(m.readAt)
	return age < due || age < 2*due && !Diff(m.written, want).Empty()
}

// read reads our table; one that is not there is the empty Ruleset.
func (m *Manager) read(ctx context.Context) (Ruleset, []string, error) {
	text, err := m.host.List(ctx, "table", "inet", TableName)
	if err != nil && !crashed(err) {
		return Ruleset{}, nil, err
	}
	r, strange, perr := parse(text)
	if err = cmp.Or(err, perr); err != nil {
		// nft 1.0.6 prints whatever memory holds as the flags of a table that was made dormant, or dies of it.
		return Ruleset{}, []string{"it cannot be listed: " + err.Error()}, nil
	}
	return r, strange, nil
}

// crashed tells whether a program was ended by a signal that it brought on itself.
func crashed(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && (status.Signal() == syscall.SIGSEGV || status.Signal() == syscall.SIGABRT)
}

// difference is Diff of a table that may hold what can never be ours.
func difference(have, want Ruleset, strange []string) Difference {
	if len(strange) == 0 {
		return Diff(have, want)
	}
	var d Difference
	for _, text := range strange {
		d.replace(text)
	}
	return d
}

// commit writes a difference. Something may have come or gone since it was read: then the whole table is written.
func (m *Manager) commit(ctx context.Context, d Difference, want Ruleset) error {
	m.known = false
	m.review(want)
	err := m.write(ctx, func(w writer) { w.apply(d, want) })
	if err != nil && !d.rewrite {
		m.foreign.Store(true)
		d.rewrite = true
		err = m.write(ctx, func(w writer) { w.replace(want) })
	}
	if err != nil || d.rewrite || d.old.empty() {
		return err
	}
	if err := m.write(ctx, func(w writer) { w.sweep(d.old) }); err != nil {
		m.foreign.Store(true) // the rules are in force; what is left over is met by the next reading
	}
	return nil
}

// write carries out one transaction on our table.
func (m *Manager) write(ctx context.Context, fill func(writer)) error {
	if err := m.open(); err != nil {
		return err
	}
	m.sign.number++
	w := writer{tx: m.conn.NewTransaction(), bundle: bundleSize, sign: m.sign, cut: slices.Collect(maps.Keys(m.cutting.flows))}
	fill(w)
	m.host.Note("nft", "-f", "-")
	err := m.host.Inside(func() error { return m.conn.Run(ctx, w.tx) })
	if knftables.IsNotFound(err) { // what nft says when the kernel lacks an expression, and not which
		err = fmt.Errorf("%w (does the kernel have nft_ct, nft_fib_inet, nft_objref?)", err)
	}
	if err != nil {
		return fmt.Errorf("write table inet %s: %w", TableName, err)
	}
	return nil
}

// open finds out whether nft is there and new enough. It is tried again at each use until it succeeds, since the capability
// or the module that is missing now may come.
func (m *Manager) open() error {
	if m.conn != nil {
		return nil
	}
	if _, err := m.host.Find("nft"); err != nil {
		return err
	}
	return m.host.Inside(func() error {
		conn, err := knftables.New(knftables.InetFamily, TableName)
		if err != nil {
			return fmt.Errorf("open nftables (nft 1.0.1 and kernel 5.10 are the floor): %w", err)
		}
		m.conn = conn
		return nil
	})
}

func (l leftover) empty() bool { return len(l.chains)+len(l.sets)+len(l.maps)+len(l.counters) == 0 }

// summary keeps a first round with five thousand elements from becoming five thousand log lines.
func summary(texts []string) []string {
	const most = 10
	if len(texts) <= most {
		return texts
	}
	return append(texts[:most:most], fmt.Sprintf("and %d more", len(texts)-most))
}
