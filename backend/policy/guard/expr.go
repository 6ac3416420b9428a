package guard

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/nl"
)

// Rules are lists of the kernel's expressions, which `nft --debug=netlink` shows for any rule that it compiles. Numbers in
// their attributes are big-endian; what is loaded and compared is as the packet or the kernel has it.

const first = unix.NFT_REG_1 // the register that expressions hand on

// expr is an expression with its attributes.
func expr(name string, attrs ...[]byte) []byte {
	return nl.Nested(unix.NFTA_LIST_ELEM, append(nl.Text(unix.NFTA_EXPR_NAME, name), nl.Nested(unix.NFTA_EXPR_DATA, slices.Concat(attrs...))...))
}

// word is an attribute with a number.
func word(kind uint16, value uint32) []byte {
	return nl.Attr(kind, binary.BigEndian.AppendUint32(nil, value))
}

// data is an attribute with bytes that are loaded or compared.
func data(kind uint16, value ...byte) []byte {
	return nl.Nested(kind, nl.Attr(unix.NFTA_DATA_VALUE, value))
}

func native(value uint32) []byte { return binary.NativeEndian.AppendUint32(nil, value) }

// meta loads something that is known of a packet.
func meta(key, register uint32) []byte {
	return expr("meta", word(unix.NFTA_META_KEY, key), word(unix.NFTA_META_DREG, register))
}

// setMeta writes what was loaded into something that is known of a packet.
func setMeta(key uint32) []byte {
	return expr("meta", word(unix.NFTA_META_KEY, key), word(unix.NFTA_META_SREG, first))
}

// payload loads bytes of a packet.
func payload(base, offset, size, register uint32) []byte {
	return expr("payload", word(unix.NFTA_PAYLOAD_DREG, register), word(unix.NFTA_PAYLOAD_BASE, base),
		word(unix.NFTA_PAYLOAD_OFFSET, offset), word(unix.NFTA_PAYLOAD_LEN, size))
}

// is goes on when what was loaded compares so.
func is(op uint32, value ...byte) []byte {
	return expr("cmp", word(unix.NFTA_CMP_SREG, first), word(unix.NFTA_CMP_OP, op), data(unix.NFTA_CMP_DATA, value...))
}

// anyBit goes on when what was loaded has one of the bits.
func anyBit(bits uint32) []byte {
	return append(masked(bits), is(unix.NFT_CMP_NEQ, native(0)...)...)
}

// masked leaves of what was loaded only some bits.
func masked(bits uint32) []byte {
	return expr("bitwise", word(unix.NFTA_BITWISE_SREG, first), word(unix.NFTA_BITWISE_DREG, first), word(unix.NFTA_BITWISE_LEN, 4),
		data(unix.NFTA_BITWISE_MASK, native(bits)...), data(unix.NFTA_BITWISE_XOR, native(0)...))
}

// in goes on when a set has what was loaded.
func in(set string) []byte {
	return expr("lookup", word(unix.NFTA_LOOKUP_SREG, first), nl.Text(unix.NFTA_LOOKUP_SET, set))
}

// keep puts what was loaded into a set.
func keep(set string) []byte {
	return expr("dynset", nl.Text(unix.NFTA_DYNSET_SET_NAME, set), word(unix.NFTA_DYNSET_OP, unix.NFT_DYNSET_OP_UPDATE),
		word(unix.NFTA_DYNSET_SREG_KEY, first))
}

// verdict ends a rule, with the chain where a jump leads.
func verdict(code int32, chain string) []byte {
	v := word(unix.NFTA_VERDICT_CODE, uint32(code))
	if chain != "" {
		v = append(v, nl.Text(unix.NFTA_VERDICT_CHAIN, chain)...)
	}
	return expr("immediate", word(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT),
		nl.Nested(unix.NFTA_IMMEDIATE_DATA, nl.Nested(unix.NFTA_DATA_VERDICT, v)))
}

// header is where the addresses of a family are, and where they go in a key of source, destination, protocol and port.
type header struct {
	proto  byte   // NFPROTO_...
	kind   uint32 // nft's number of the type of an address
	size   uint32 // of an address
	source uint32 // its offset; the destination follows

	destReg, protoReg, portReg uint32
}

func headerOf(f subnet.Family) header {
	return [2]header{
		{proto: unix.NFPROTO_IPV4, kind: 7, size: 4, source: 12, destReg: unix.NFT_REG32_01, protoReg: unix.NFT_REG32_02, portReg: unix.NFT_REG32_03},
		{proto: unix.NFPROTO_IPV6, kind: 8, size: 16, source: 8, destReg: unix.NFT_REG_2, protoReg: unix.NFT_REG32_08, portReg: unix.NFT_REG32_09},
	}[f]
}

// ofFamily goes on with packets of the family.
func (h header) ofFamily() []byte {
	return append(meta(unix.NFT_META_NFPROTO, first), is(unix.NFT_CMP_EQ, h.proto)...)
}

// address loads the source, or the destination.
func (h header) address(dest bool, register uint32) []byte {
	offset := h.source
	if dest {
		offset += h.size
	}
	return payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, h.size, register)
}

// key loads source, destination, protocol and port.
func (h header) key() []byte {
	return slices.Concat(h.address(false, first), h.address(true, h.destReg), meta(unix.NFT_META_L4PROTO, h.protoReg),
		payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, h.portReg))
}
