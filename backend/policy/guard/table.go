package guard

import (
	"encoding/binary"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/nl"
)

const (
	passedTime = 2 * time.Minute // what passed is remembered for so long
	passedMost = 65535           // and not more than so many
	chunk      = 1000            // elements in a message: the length of a list of them is a number of 16 bits

	// nft's numbers of types, by which it prints a set.
	typeProto, typePort, typeBits = 12, 13, 6
)

const portsSet = "with-ports"

// withPorts are the protocols that have ports where TCP has them.
func withPorts() []byte {
	return []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE, unix.IPPROTO_DCCP, unix.IPPROTO_SCTP}
}

func suffix(f subnet.Family) string { return [2]string{"-ipv4", "-ipv6"}[f] }

// sideSet is the set of the pods of a side.
func sideSet(s Side, f subnet.Family) string {
	return [3]string{"to-pod", "from-pod", "to-node"}[s] + suffix(f)
}

// passedSet is the set of what has passed: source, destination, protocol, port.
func passedSet(f subnet.Family) string { return "passed" + suffix(f) }

// sets are all sets, empty but for the protocols.
func sets() []nl.NFTMessage {
	var out []nl.NFTMessage
	set := func(name string, kind, size uint32, more ...[]byte) {
		out = append(out, nl.NFTMessage{Kind: unix.NFT_MSG_NEWSET, Flags: unix.NLM_F_CREATE, Attrs: slices.Concat(
			nl.Text(unix.NFTA_SET_TABLE, TableName), nl.Text(unix.NFTA_SET_NAME, name), word(unix.NFTA_SET_ID, uint32(len(out)+1)),
			word(unix.NFTA_SET_KEY_TYPE, kind), word(unix.NFTA_SET_KEY_LEN, size), slices.Concat(more...),
		)})
	}
	set(portsSet, typeProto, 1)
	for _, f := range subnet.Families() {
		h := headerOf(f)
		for _, s := range []Side{ToPod, FromPod, ToNode} {
			set(sideSet(s, f), h.kind, h.size)
		}
		set(passedSet(f), ((h.kind<<typeBits|h.kind)<<typeBits|typeProto)<<typeBits|typePort, 2*h.size+8,
			word(unix.NFTA_SET_FLAGS, unix.NFT_SET_TIMEOUT|unix.NFT_SET_EVAL),
			nl.Attr(unix.NFTA_SET_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(passedTime.Milliseconds()))),
			nl.Nested(unix.NFTA_SET_DESC, word(unix.NFTA_SET_DESC_SIZE, passedMost)),
		)
	}
	var protocols [][]byte
	for _, p := range withPorts() {
		protocols = append(protocols, []byte{p})
	}
	return append(out, keys(unix.NFT_MSG_NEWSETELEM, portsSet, protocols))
}

// elements are messages that put pods into their sets, or take them out.
func elements(kind uint16, pods Pods) []nl.NFTMessage {
	var out []nl.NFTMessage
	for side, addrs := range pods {
		var list [2][][]byte
		for a := range addrs {
			list[subnet.FamilyOf(a)] = append(list[subnet.FamilyOf(a)], a.AsSlice())
		}
		for _, f := range subnet.Families() {
			for part := range slices.Chunk(list[f], chunk) {
				out = append(out, keys(kind, sideSet(Side(side), f), part))
			}
		}
	}
	return out
}

// forgetting are messages that empty the sets of what has passed.
func forgetting() []nl.NFTMessage {
	var out []nl.NFTMessage
	for _, f := range subnet.Families() {
		out = append(out, keys(unix.NFT_MSG_DELSETELEM, passedSet(f), nil))
	}
	return out
}

// keys is a message about elements of a set; without any, about all that it has.
func keys(kind uint16, set string, list [][]byte) nl.NFTMessage {
	m := nl.NFTMessage{Kind: kind, Attrs: append(nl.Text(unix.NFTA_SET_ELEM_LIST_TABLE, TableName), nl.Text(unix.NFTA_SET_ELEM_LIST_SET, set)...)}
	if kind == unix.NFT_MSG_NEWSETELEM {
		m.Flags = unix.NLM_F_CREATE
	}
	var elements []byte
	for _, k := range list {
		elements = append(elements, nl.Nested(unix.NFTA_LIST_ELEM, data(unix.NFTA_SET_ELEM_KEY, k...))...)
	}
	if len(list) > 0 {
		m.Attrs = append(m.Attrs, nl.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, elements)...)
	}
	return m
}
