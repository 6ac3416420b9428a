package main

import (
	"encoding/binary"
	"hash/crc32"
)

// The types of the chunks that are sent.
const (
	chunkInit    = 1
	chunkInitAck = 2
)

// headerSize is the common header's; a chunk follows it.
const headerSize = 12

// packet is an SCTP packet with one INIT or INIT ACK chunk.
type packet struct {
	from, to uint16
	tag      uint32 // verification tag of the header: 0 with an INIT, else the other side's
	kind     byte
	own      uint32 // the sender's initiate tag
}

// cookie is the state cookie that an INIT ACK must carry; nobody gives it back.
const cookie = "here"

func (p packet) bytes() []byte {
	chunk := make([]byte, 20)
	chunk[0] = p.kind
	binary.BigEndian.PutUint32(chunk[4:], p.own)
	binary.BigEndian.PutUint32(chunk[8:], 65536) // receiver window
	binary.BigEndian.PutUint16(chunk[12:], 1)    // streams out and in
	binary.BigEndian.PutUint16(chunk[14:], 1)
	binary.BigEndian.PutUint32(chunk[16:], p.own) // the first number
	if p.kind == chunkInitAck {
		chunk = binary.BigEndian.AppendUint16(chunk, 7) // state cookie
		chunk = binary.BigEndian.AppendUint16(chunk, uint16(4+len(cookie)))
		chunk = append(chunk, cookie...)
	}
	binary.BigEndian.PutUint16(chunk[2:], uint16(len(chunk)))
	out := make([]byte, headerSize, headerSize+len(chunk))
	binary.BigEndian.PutUint16(out[0:], p.from)
	binary.BigEndian.PutUint16(out[2:], p.to)
	binary.BigEndian.PutUint32(out[4:], p.tag)
	out = append(out, chunk...)
	binary.LittleEndian.PutUint32(out[8:], crc32.Checksum(out, crc32.MakeTable(crc32.Castagnoli)))
	return out
}

// parse reads what bytes wrote, or what is like it.
func parse(b []byte) (packet, bool) {
	if len(b) < headerSize+20 {
		return packet{}, false
	}
	return packet{
		from: binary.BigEndian.Uint16(b[0:]), to: binary.BigEndian.Uint16(b[2:]), tag: binary.BigEndian.Uint32(b[4:]),
		kind: b[headerSize], own: binary.BigEndian.Uint32(b[headerSize+4:]),
	}, true
}
