package nl

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Attr is a netlink attribute, padded to four bytes.
func Attr(kind uint16, value []byte) []byte {
	out := make([]byte, unix.SizeofNlAttr, unix.SizeofNlAttr+len(value)+3)
	binary.NativeEndian.PutUint16(out, uint16(unix.SizeofNlAttr+len(value)))
	binary.NativeEndian.PutUint16(out[2:], kind)
	out = append(out, value...)
	for len(out)%unix.NLA_ALIGNTO != 0 {
		out = append(out, 0)
	}
	return out
}

// Nested is an attribute that holds attributes, as nftables wants them marked.
func Nested(kind uint16, value []byte) []byte { return Attr(kind|unix.NLA_F_NESTED, value) }

// Text is an attribute that holds a string.
func Text(kind uint16, value string) []byte { return Attr(kind, append([]byte(value), 0)) }

// Number is an attribute of four bytes.
func Number(kind uint16, value uint32) []byte {
	return Attr(kind, binary.NativeEndian.AppendUint32(nil, value))
}

// Attrs takes attributes apart, by kind. What is cut short is left out.
func Attrs(b []byte) map[uint16][]byte {
	out := map[uint16][]byte{}
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return out
		}
		out[binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = b[unix.SizeofNlAttr:size]
		b = b[min(len(b), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
	return out
}
