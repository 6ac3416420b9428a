package traffic

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// message builds a netlink message of nftables, as the kernel sends it.
func message(kind uint16, family byte, attrs map[uint16]string) []byte {
	body := []byte{family, 0, 0, 0}
	for _, id := range []uint16{attrTable, attrRuleChain, attrChainName} {
		text, there := attrs[id]
		if !there {
			continue
		}
		attr := make([]byte, 4, 8)
		binary.NativeEndian.PutUint16(attr, uint16(4+len(text)+1))
		binary.NativeEndian.PutUint16(attr[2:], id)
		attr = append(append(attr, text...), 0)
		for len(attr)%4 != 0 {
			attr = append(attr, 0)
		}
		body = append(body, attr...)
	}
	b := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body))
	binary.NativeEndian.PutUint32(b, uint32(cap(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.NFNL_SUBSYS_NFTABLES<<8|kind)
	return append(b, body...)
}

func TestEventsThatConcernUs(t *testing.T) {
	const inet, ip, ip6 = unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6
	for _, tc := range []struct {
		name   string
		kind   uint16
		family byte
		attrs  map[uint16]string
		want   bool
	}{
		{"a rule of ours", unix.NFT_MSG_NEWRULE, inet, map[uint16]string{attrTable: "weft", attrRuleChain: "postrouting"}, true},
		{"an element of ours", unix.NFT_MSG_DELSETELEM, inet, map[uint16]string{attrTable: "weft", 2: "peers-ipv4"}, true},
		{"our table", unix.NFT_MSG_DELTABLE, inet, map[uint16]string{attrTable: "weft"}, true},
		{"any new table", unix.NFT_MSG_NEWTABLE, inet, map[uint16]string{attrTable: "firewalld"}, true},
		{"FORWARD's policy", unix.NFT_MSG_NEWCHAIN, ip, map[uint16]string{attrTable: "filter", attrChainName: "FORWARD"}, true},
		{"a rule of FORWARD", unix.NFT_MSG_DELRULE, ip6, map[uint16]string{attrTable: "filter", attrRuleChain: "FORWARD"}, true},
		{"a rule of INPUT", unix.NFT_MSG_NEWRULE, ip, map[uint16]string{attrTable: "filter", attrRuleChain: "INPUT"}, true},
		{"our iptables chain", unix.NFT_MSG_DELRULE, ip, map[uint16]string{attrTable: "filter", attrRuleChain: chainName}, true},
		{"kube-proxy's chain", unix.NFT_MSG_NEWRULE, ip, map[uint16]string{attrTable: "filter", attrRuleChain: "KUBE-SERVICES"}, false},
		{"kube-proxy's element", unix.NFT_MSG_NEWSETELEM, ip, map[uint16]string{attrTable: "kube-proxy", 2: "service-ips"}, false},
		{"a set called FORWARD", unix.NFT_MSG_NEWSET, ip, map[uint16]string{attrTable: "filter", 2: "FORWARD"}, false},
		{"another family's weft", unix.NFT_MSG_NEWRULE, ip, map[uint16]string{attrTable: "weft", attrRuleChain: "x"}, false},
		{"a generation", unix.NFT_MSG_NEWGEN, 0, map[uint16]string{attrTable: "weft"}, false},
	} {
		quiet := message(unix.NFT_MSG_NEWGEN, 0, map[uint16]string{attrTable: "1234"})
		if got := hears(append(quiet, message(tc.kind, tc.family, tc.attrs)...)); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestAMessageThatIsCutShortPokesOrIsPassedOver(t *testing.T) {
	whole := message(unix.NFT_MSG_NEWRULE, unix.NFPROTO_IPV4, map[uint16]string{attrTable: "filter", attrRuleChain: "FORWARD"})
	for n := range len(whole) {
		hears(whole[:n]) // must not panic
	}
	bad := append([]byte(nil), whole...)
	binary.NativeEndian.PutUint16(bad[unix.SizeofNlMsghdr+nfgenmsgLen:], 2) // an attribute shorter than its header
	if hears(bad) {
		t.Error("a broken attribute is believed")
	}
	other := append([]byte(nil), whole...)
	binary.NativeEndian.PutUint16(other[4:], unix.NFNL_SUBSYS_CTNETLINK<<8)
	if hears(other) {
		t.Error("another subsystem's message is taken for one of nftables")
	}
}

func TestTheKernelsRefusalComesWithItsCure(t *testing.T) {
	for errno, want := range map[unix.Errno]string{
		unix.EPERM: "NET_ADMIN", unix.EINVAL: "modprobe nf_tables", unix.EOPNOTSUPP: "modprobe nf_tables", unix.ENOMEM: "cannot allocate memory",
	} {
		data := binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
		if err := netlinkError(data); !errors.Is(err, errno) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	if err := netlinkError(nil); err == nil {
		t.Error("an empty error is none")
	}
}
