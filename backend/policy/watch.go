package policy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/netfilter"
)

// Watch has a value soon after somebody else changed our table. Our own writes do not poke. The channel is closed when ctx
// ends.
func (m *Manager) Watch(ctx context.Context) <-chan struct{} {
	poked := make(chan struct{}, 1)
	go func() {
		defer close(poked)
		defer m.watching.Store(false)
		s := suspicion{mark: []byte(m.sign.text)}
		m.host.Listen(ctx, func(c netfilter.Change) {
			if c.Lost {
				m.watching.Store(true) // from here on changes are heard
			}
			bridged := c.Lost || c.Table == "bridge "+TableName // ours are heard, too: they are few
			if bridged {
				m.tags.doubt.Store(true)
			}
			switch foreign := s.hears(c); {
			case foreign:
				m.gone.Store(s.gone)
				m.foreign.Store(true)
			case !bridged:
				return
			}
			select {
			case poked <- struct{}{}:
			default: // one is waiting already, and one is enough
			}
		})
	}()
	return poked
}

// signature is how the transactions of one Manager are known: all by a text, and each by a number, since an element that is there
// already would not be added, and not be told of.
type signature struct {
	text   string
	number uint32
}

// newSignature makes one of what nobody else has.
func newSignature(unique string) signature {
	sum := sha256.Sum256([]byte(unique))
	return signature{text: "by weft " + hash(unique), number: binary.NativeEndian.Uint32(sum[:])}
}

// suspicion tells our transactions from others'.
type suspicion struct {
	mark    []byte
	touched bool // the transaction that is being heard has changed our table
	signed  bool // and bears our mark
	deleted bool // and has deleted it
	gone    bool // what was heard last was that somebody else deleted it
}

// hears takes a change, and tells whether somebody else has changed our table.
func (s *suspicion) hears(c netfilter.Change) bool {
	switch {
	case c.Lost:
		s.touched, s.signed, s.deleted, s.gone = false, false, false, false
		return true
	case c.End:
		foreign := s.touched && !s.signed
		s.gone = foreign && s.deleted
		s.touched, s.signed, s.deleted = false, false, false
		return foreign
	case c.Table == "inet "+TableName:
		s.touched = true
		s.deleted = c.Kind == unix.NFT_MSG_DELTABLE || s.deleted && c.Kind != unix.NFT_MSG_NEWTABLE
		s.signed = s.signed || c.Kind == unix.NFT_MSG_NEWSETELEM && bytes.Contains(c.Data, s.mark)
	}
	return false
}
