package policy

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/subnet"
)

// tags keeps the table "bridge weft-policy". A frame with a tag of the VLAN that is none (802.1Q's priority tags, any number of
// them) goes around br_netfilter, and so around every table of the inet family, while the pod that gets it takes it as one
// without a tag. Between two pods of a bridge such frames that would be taken as IP are dropped. What is routed has no tag left.
type tags struct {
	text   string // what was written, or found to be right
	looked time.Time
	err    error       // of that look: a kernel that cannot is not asked at every turn
	doubt  atomic.Bool // somebody changed the table since
}

// Where things are in a frame with one tag, in bits.
const (
	tagAt, kindAt = 14 * 8, 16 * 8
	frameHead     = 18 * 8
)

// tagRules is the table for pods of some ranges, in nft's language; "" without any.
func tagRules(pods [2]netip.Prefix) string {
	const tagged = "ether type { 8021q, 8021ad } @ll,%d,16 & 0x0fff == 0 @ll,%d,16 "
	var rules []string
	for _, f := range subnet.Families() {
		p := pods[f]
		if !p.IsValid() {
			continue
		}
		dest := [2]int{16, 24}[f]*8 + frameHead
		size := p.Addr().BitLen()
		mask := new(big.Int).SetBytes(net.CIDRMask(p.Bits(), size))
		addr := new(big.Int).SetBytes(p.Masked().Addr().AsSlice())
		rules = append(rules, fmt.Sprintf(tagged+"%s @ll,%d,%d & 0x%x == 0x%x", tagAt, kindAt, [2]string{"0x0800", "0x86dd"}[f], dest, size, mask, addr))
	}
	if len(rules) == 0 {
		return ""
	}
	rules = append(rules, fmt.Sprintf(tagged+"{ 0x8100, 0x88a8 }", tagAt, kindAt))
	text := hash(rules...)
	var b strings.Builder
	fmt.Fprintf(&b, "table bridge %s {\n\tchain forward {\n\t\ttype filter hook forward priority -300; policy accept;\n", TableName)
	for _, r := range rules {
		fmt.Fprintf(&b, "\t\t%s counter drop comment \"a tag that hides it from the policies #%s\"\n", r, text)
	}
	return b.String() + "\t}\n}\n"
}

// keep makes the table right, or takes it away.
func (t *tags) keep(ctx context.Context, h netfilter.Host, text string, heard bool) error {
	if doubt := t.doubt.Swap(false); heard && !doubt && text == t.text && time.Since(t.looked) < rereadPeriod {
		return t.err
	}
	right, stands, err := t.right(ctx, h, text)
	if err == nil && !right {
		clear := map[bool]string{true: fmt.Sprintf("delete table bridge %s\n", TableName)}[stands]
		_, err = h.Run(ctx, clear+text, "nft", "-f", "-")
	}
	if err != nil {
		err = fmt.Errorf("write table bridge %s (does the kernel have nf_tables_bridge?): %w", TableName, err)
	}
	t.text, t.looked, t.err = text, time.Now(), err
	return err
}

// right looks at the table. Rules are known by their comments: nft does not print the text that was written.
func (t *tags) right(ctx context.Context, h netfilter.Host, text string) (right, stands bool, err error) {
	tables, err := h.Tables()
	stands = tables["bridge "+TableName]
	if err != nil || !stands {
		return text == "", stands, err
	}
	list, err := h.List(ctx, "table", "bridge", TableName)
	have, odd := 0, false
	err = errors.Join(err, netfilter.Objects(list, func(kind string, o netfilter.Object) {
		switch kind {
		case "metainfo":
		case "table":
			odd = odd || string(o.Flags) != "" // dormant
		case "chain":
			odd = odd || o.Hook != "forward" || o.Prio != -300
		case "rule":
			have++
			odd = odd || o.Comment == "" || !strings.Contains(text, o.Comment)
		default:
			odd = true
		}
	}))
	return text != "" && !odd && have == strings.Count(text, "comment"), stands, err
}
