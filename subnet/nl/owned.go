package nl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrNoOwner means that the kernel has no tables with an owner.
var ErrNoOwner = errors.New("the kernel has no nftables with an owner (Linux 5.12 has)")

const tableOwned = 2 // NFT_TABLE_F_OWNER

// OwnTable makes an empty table of the inet family that belongs to the conversation: the kernel leaves it out when others flush,
// lets nobody else change it, and takes it away when the conversation is closed. One of the name that has no owner is replaced.
func OwnTable(name string) (NFTables, error) {
	c, err := DialNFTables()
	if err != nil {
		return c, err
	}
	flags := Attr(unix.NFTA_TABLE_FLAGS, binary.BigEndian.AppendUint32(nil, tableOwned))
	add := NFTMessage{Kind: unix.NFT_MSG_NEWTABLE, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Attrs: append(Text(unix.NFTA_TABLE_NAME, name), flags...)}
	err = c.Change(add)
	if errors.Is(err, unix.EEXIST) {
		err = c.Change(NFTMessage{Kind: unix.NFT_MSG_DELTABLE, Attrs: Text(unix.NFTA_TABLE_NAME, name)}, add)
	}
	if err == nil {
		return c, nil
	}
	c.Close()
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return c, ErrNoOwner
	case errors.Is(err, unix.EPERM):
		err = fmt.Errorf("%w: another process does, or NET_ADMIN is missing", err)
	}
	return c, fmt.Errorf("own table inet %s: %w", name, err)
}
