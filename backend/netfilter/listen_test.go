package netfilter

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"syscall"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet/nl"
)

// event builds a netlink message of nftables, as the kernel sends it.
func event(kind uint16, family byte, attrs ...[]byte) []byte {
	return request{kind: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, family: family, attrs: slices.Concat(attrs...)}.bytes()
}

func changes(t *testing.T, b []byte) (out []Change) {
	t.Helper()
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		if c, ok := parseChange(m); ok {
			c.Data = nil
			out = append(out, c)
		}
	}
	return out
}

func TestAChangeNamesItsTableAndItsChain(t *testing.T) {
	b := slices.Concat(
		event(unix.NFT_MSG_NEWTABLE, unix.NFPROTO_INET, nl.Text(unix.NFTA_TABLE_NAME, "weft")),
		event(unix.NFT_MSG_NEWRULE, unix.NFPROTO_IPV4, nl.Text(unix.NFTA_RULE_TABLE, "filter"), nl.Text(unix.NFTA_RULE_CHAIN, "FORWARD")),
		event(unix.NFT_MSG_DELCHAIN, unix.NFPROTO_IPV6, nl.Text(unix.NFTA_CHAIN_TABLE, "filter"), nl.Number(unix.NFTA_CHAIN_HANDLE, 7), nl.Text(unix.NFTA_CHAIN_NAME, "INPUT")),
		event(unix.NFT_MSG_NEWSET, unix.NFPROTO_IPV4, nl.Text(unix.NFTA_SET_TABLE, "filter"), nl.Text(unix.NFTA_SET_NAME, "FORWARD")),
		event(unix.NFT_MSG_NEWGEN, 0, nl.Number(unix.NFTA_GEN_ID, 1234)),
	)
	want := []Change{
		{Table: "inet weft", Kind: unix.NFT_MSG_NEWTABLE},
		{Table: "ip filter", Chain: "FORWARD", Kind: unix.NFT_MSG_NEWRULE},
		{Table: "ip6 filter", Chain: "INPUT", Kind: unix.NFT_MSG_DELCHAIN},
		{Table: "ip filter", Kind: unix.NFT_MSG_NEWSET},
		{End: true},
	}
	if d := cmp.Diff(want, changes(t, b)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestAMessageThatIsCutShortIsPassedOver(t *testing.T) {
	whole := event(unix.NFT_MSG_NEWRULE, unix.NFPROTO_IPV4, nl.Text(unix.NFTA_RULE_TABLE, "filter"), nl.Text(unix.NFTA_RULE_CHAIN, "FORWARD"))
	for n := range len(whole) {
		changes(t, whole[:n]) // must not panic
	}
	bad := slices.Clone(whole)
	binary.NativeEndian.PutUint16(bad[unix.SizeofNlMsghdr+nfgenmsgLen:], 2) // an attribute shorter than its header
	if got := changes(t, bad); got != nil {
		t.Errorf("a broken attribute is believed: %+v", got)
	}
	other := slices.Clone(whole)
	binary.NativeEndian.PutUint16(other[4:], unix.NFNL_SUBSYS_CTNETLINK<<8)
	if got := changes(t, other); got != nil {
		t.Errorf("another subsystem's message is taken for one of nftables: %+v", got)
	}
}

func TestTheKernelsRefusalComesWithItsCure(t *testing.T) {
	for errno, want := range map[unix.Errno]string{unix.EPERM: "NET_ADMIN", unix.ENOMEM: "cannot allocate memory"} {
		data := binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
		if err := netlinkError(data); !errors.Is(err, errno) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	for _, errno := range []unix.Errno{unix.EINVAL, unix.EOPNOTSUPP} {
		if err := tablesError(errno); !errors.Is(err, errno) || !strings.Contains(err.Error(), "modprobe nf_tables") {
			t.Errorf("%v: %v", errno, err)
		}
	}
	if err := netlinkError(nil); err == nil {
		t.Error("an empty error is none")
	}
}
