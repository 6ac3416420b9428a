package gate

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/attach"
	"github.com/weft-cni/weft/subnet/nl"
)

const (
	priority = "filter+5" // before the policies, though each only drops

	// How long a table that was right is taken to be right while it stands, and while changes of it are heard. To look runs
	// nft, and a pod waits for it.
	look, lookHeard = time.Second, time.Minute
)

// table is the kernel's "inet weft-gate". Its chains are ours; its sets are filled by the plugin.
type table struct {
	host   netfilter.Host
	wrap   func(knftables.Interface) knftables.Interface
	conn   knftables.Interface
	looked time.Time    // when the rules were last seen to be right
	doubt  *atomic.Bool // somebody changed the table since
	heard  *atomic.Bool // changes are listened to, and raise doubts
	toNode toNode       // whether there is to be a chain for packets to the node

	needless bool         // there is one, and there is not to be
	sign     *nl.NFTables // the owner of the sign; nil while there is none
}

// rules drop what is sent from and to held addresses. Neighbour discovery is not a pod's word but its kernel's, and the
// bridge shows it to this hook as well; a pod that loses it is late to reach its neighbours.
func rules() []string {
	var out []string
	for _, f := range subnet.Families() {
		proto := [2]string{"ip", "ip6"}[f]
		if f == subnet.IPv6 {
			out = append(out, "meta nfproto ipv4 accept", // all packets come by here, and every rule costs some nanoseconds
				"icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } accept")
		}
		for _, end := range []string{"saddr", "daddr"} {
			out = append(out, fmt.Sprintf("%s %s @%s %s %s != @%s counter drop", proto, end, attach.HeldSet(f), proto, end, attach.FreeSet(f)))
		}
	}
	return out
}

// comment tells a rule by its text, which nft prints otherwise than it was written.
func comment(rule string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(rule)) // never returns an error
	return fmt.Sprintf("new pods wait for their policies #%08x", h.Sum32())
}

func (t *table) stands() (stands bool, err error) {
	err = t.host.Inside(func() (err error) { stands, err = attach.Stands(); return err })
	return stands, err
}

// ensured is what had to be done to the table.
type ensured struct {
	made   bool // it was missing
	mended bool // it was missing, or its rules were not as they should: something may have passed
}

// ensure makes the table right.
func (t *table) ensure(ctx context.Context) (ensured, error) {
	t.putUpSign()
	stands, err := t.stands()
	if err != nil {
		return ensured{}, err
	}
	if t.doubt.Swap(false) {
		t.looked = time.Time{}
	}
	trust := look
	if t.heard.Load() {
		trust = lookHeard
	}
	if stands && time.Since(t.looked) < trust {
		return ensured{}, nil
	}
	if stands && t.right(ctx) {
		t.looked = time.Now()
		return ensured{}, nil
	}
	err = t.write(ctx, func(tx *knftables.Transaction) {
		tx.Add(&knftables.Table{Comment: knftables.PtrTo("kept by weft: new pods wait for their policies")})
		for _, f := range subnet.Families() {
			for _, name := range []string{attach.HeldSet(f), attach.FreeSet(f)} {
				tx.Add(&knftables.Set{Name: name, Type: [2]string{"ipv4_addr", "ipv6_addr"}[f]})
			}
		}
		addChain(tx, knftables.ForwardHook, rules())
		t.writeToNode(tx)
	})
	if err == nil {
		t.looked = time.Now()
	}
	return ensured{made: err == nil && !stands, mended: err == nil}, err
}

// putUpSign says that there are policies, whatever somebody does to the table. Where it cannot be put up, or another agent has,
// new pods are held as long as the table stands.
func (t *table) putUpSign() {
	if t.sign != nil {
		return
	}
	_ = t.host.Inside(func() error {
		c, err := nl.OwnTable(attach.SignName)
		if err == nil {
			t.sign = &c
		}
		return err
	})
}

// takeDownSign says that there are no policies.
func (t *table) takeDownSign() {
	if t.sign != nil {
		t.sign.Close()
	}
	t.sign = nil
}

// right looks whether the rules are those that should be there.
func (t *table) right(ctx context.Context) bool {
	if t.open() != nil {
		return false
	}
	var have []*knftables.Rule
	if t.host.Inside(func() (err error) { have, err = t.conn.ListRules(ctx, string(knftables.ForwardHook)); return err }) != nil {
		return false
	}
	return sameRules(have, rules()) && t.toNodeRight(ctx) && t.awake(ctx)
}

// awake looks whether the table is one that does something: nft makes a table dormant without touching its rules. One that it dies of
// listing (nft 1.0.6 does) is dormant, too.
func (t *table) awake(ctx context.Context) bool {
	text, err := t.host.List(ctx, "table", "inet", attach.TableName)
	flags := ""
	err = errors.Join(err, netfilter.Objects(text, func(kind string, o netfilter.Object) {
		if kind == "table" {
			flags += string(o.Flags)
		}
	}))
	return err == nil && flags == ""
}

func sameRules(have []*knftables.Rule, want []string) bool {
	return slices.EqualFunc(have, want, func(r *knftables.Rule, want string) bool {
		return r.Comment != nil && *r.Comment == comment(want)
	})
}

// addChain makes a base chain, which is called as its hook is, and its rules, and never touches the sets: they are not ours to empty.
func addChain(tx *knftables.Transaction, hook knftables.BaseChainHook, rules []string) {
	name := string(hook)
	tx.Add(&knftables.Chain{
		Name: name, Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(hook),
		Priority: knftables.PtrTo(knftables.BaseChainPriority(priority)), Policy: knftables.PtrTo(knftables.AcceptPolicy),
	})
	tx.Flush(&knftables.Chain{Name: name})
	for _, r := range rules {
		tx.Add(&knftables.Rule{Chain: name, Rule: r, Comment: knftables.PtrTo(comment(r))})
	}
}

func (t *table) remove(ctx context.Context) error {
	t.takeDownSign()
	t.looked = time.Time{}
	if stands, err := t.stands(); err != nil || !stands {
		return err
	}
	return t.write(ctx, func(tx *knftables.Transaction) { tx.Delete(&knftables.Table{}) })
}

// list gives the held addresses.
func (t *table) list(ctx context.Context) ([]netip.Addr, error) {
	if err := t.open(); err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, f := range subnet.Families() {
		var elements []*knftables.Element
		err := t.host.Inside(func() (err error) { elements, err = t.conn.ListElements(ctx, "set", attach.HeldSet(f)); return err })
		if err != nil && !knftables.IsNotFound(err) {
			return nil, fmt.Errorf("list the addresses that are held: %w", err)
		}
		for _, e := range elements {
			if a, err := netip.ParseAddr(e.Key[0]); err == nil {
				out = append(out, a)
			}
		}
	}
	return out, nil
}

func (t *table) hold(addrs []netip.Addr) error {
	return t.host.Inside(func() error { _, err := attach.Hold(addrs); return err })
}

// held lists those of some addresses to and from which nothing passes.
func (t *table) held(addrs []netip.Addr) (held []netip.Addr, err error) {
	err = t.host.Inside(func() (err error) { held, err = attach.Held(addrs); return err })
	return held, err
}

func (t *table) free(addrs []netip.Addr) error {
	return t.host.Inside(func() error { return attach.Free(addrs) })
}

func (t *table) release(addrs []netip.Addr) error {
	return t.host.Inside(func() error { return attach.Release(addrs) })
}

// open finds nft; it is tried again at each use until it is there.
func (t *table) open() error {
	if t.conn != nil {
		return nil
	}
	return t.host.Inside(func() error {
		conn, err := knftables.New(knftables.InetFamily, attach.TableName)
		if err != nil {
			return fmt.Errorf("open nftables (nft 1.0.1 and kernel 5.10 are the floor): %w", err)
		}
		if t.wrap != nil {
			conn = t.wrap(conn)
		}
		t.conn = conn
		return nil
	})
}

func (t *table) write(ctx context.Context, fill func(*knftables.Transaction)) error {
	if err := t.open(); err != nil {
		return err
	}
	tx := t.conn.NewTransaction()
	fill(tx)
	if err := t.host.Inside(func() error { return t.conn.Run(ctx, tx) }); err != nil {
		return fmt.Errorf("write table inet %s: %w", attach.TableName, err)
	}
	return nil
}
