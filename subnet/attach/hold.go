package attach

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/nl"
)

// TableName is the nftables table, of family inet, that drops what is sent from or to the addresses that are held and not
// free. The agent makes it when there are policies, and takes it away when there are none.
//
// There are two sets a family, since the kernel adds an element to a set in 30 microseconds, while a transaction that
// takes one out waits for a grace period of RCU, 10 milliseconds or more. So an address that is let go becomes free first,
// and is taken out of both sets when nobody waits for it. An address is free only while it is held: Hold looks after that,
// and Release takes out of both or of none.
const TableName = "weft-gate"

// HeldSet is the set of a family that the plugin fills.
func HeldSet(f subnet.Family) string { return [2]string{"held-ipv4", "held-ipv6"}[f] }

// FreeSet is the set of a family that the agent fills.
func FreeSet(f subnet.Family) string { return [2]string{"free-ipv4", "free-ipv6"}[f] }

// Stands reports whether the table is there, that is, whether new pods have to be held. The kernel is asked and not a
// file, since it is the kernel that lets packets pass: what it says holds while the agent is away, too, and from the very
// moment at which the agent begins to enforce.
func Stands() (bool, error) { return exists(TableName) }

// Hold puts addresses into the held sets, and takes them out of the free ones if they were left there. Without the table
// it does nothing, and says so by false.
func Hold(addrs []netip.Addr) (bool, error) {
	c, err := nl.DialNFTables()
	if err != nil {
		return false, fmt.Errorf("hold %v: %w", addrs, err)
	}
	defer c.HangUp()
	err = c.Change(messages(addrs, HeldSet, nl.NFTMessage{Kind: unix.NFT_MSG_NEWSETELEM, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL})...)
	if errors.Is(err, unix.EEXIST) {
		// Held before, by a pod that is gone or by an earlier try: then it may be free, too.
		for _, a := range addrs {
			if err := c.Change(messages([]netip.Addr{a}, FreeSet, nl.NFTMessage{Kind: unix.NFT_MSG_DELSETELEM})...); err != nil && !missing(err) {
				return false, fmt.Errorf("hold %v: %w", a, err)
			}
		}
		err = c.Change(messages(addrs, HeldSet, nl.NFTMessage{Kind: unix.NFT_MSG_NEWSETELEM, Flags: unix.NLM_F_CREATE})...)
	}
	switch {
	case err == nil:
		return true, nil
	case missing(err):
		return false, nil
	}
	return false, fmt.Errorf("hold %v: %w", addrs, err)
}

// Free lets packets of addresses pass at once. Those that were not held are held from now on, and free.
func Free(addrs []netip.Addr) error {
	c, err := nl.DialNFTables()
	if err != nil {
		return fmt.Errorf("free %v: %w", addrs, err)
	}
	defer c.HangUp()
	add := nl.NFTMessage{Kind: unix.NFT_MSG_NEWSETELEM, Flags: unix.NLM_F_CREATE}
	err = c.Change(append(messages(addrs, HeldSet, add), messages(addrs, FreeSet, add)...)...)
	if err != nil && !missing(err) {
		return fmt.Errorf("free %v: %w", addrs, err)
	}
	return nil
}

// Release takes addresses that are held and free out of both sets. One that is not free was held anew, and stays.
func Release(addrs []netip.Addr) error {
	c, err := nl.DialNFTables()
	if err != nil {
		return fmt.Errorf("release %v: %w", addrs, err)
	}
	defer c.HangUp()
	del := nl.NFTMessage{Kind: unix.NFT_MSG_DELSETELEM}
	for _, a := range addrs { // one by one: one that was held anew would keep the others in
		one := []netip.Addr{a}
		err := c.Change(append(messages(one, FreeSet, del), messages(one, HeldSet, del)...)...)
		if err != nil && !missing(err) {
			return fmt.Errorf("release %v: %w", a, err)
		}
	}
	return nil
}

// Held lists those of some addresses that are held and not free.
func Held(addrs []netip.Addr) (held []netip.Addr, err error) {
	c, err := nl.DialNFTables()
	if err != nil {
		return nil, fmt.Errorf("look whether %v are held: %w", addrs, err)
	}
	defer c.HangUp()
	for _, a := range addrs {
		in, err := isIn(c, HeldSet, a)
		free := false
		if in {
			free, err = isIn(c, FreeSet, a)
		}
		if err != nil {
			return held, err
		}
		if in && !free {
			held = append(held, a)
		}
	}
	return held, nil
}

// isIn asks whether an address is in the set of its family.
func isIn(c nl.NFTables, set func(subnet.Family) string, a netip.Addr) (bool, error) {
	err := c.Ask(messages([]netip.Addr{a}, set, nl.NFTMessage{Kind: unix.NFT_MSG_GETSETELEM})[0])
	if err != nil && !missing(err) {
		return false, fmt.Errorf("look whether %v is in %s: %w", a, set(subnet.FamilyOf(a)), err)
	}
	return err == nil, nil
}

// messages makes one for each family that has addresses.
func messages(addrs []netip.Addr, set func(subnet.Family) string, m nl.NFTMessage) (out []nl.NFTMessage) {
	for _, f := range subnet.Families() {
		of := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return subnet.FamilyOf(a) != f })
		if len(of) > 0 {
			m.Attrs = elements(set(f), of)
			out = append(out, m)
		}
	}
	return out
}

// missing tells that there is no such table, set or element.
func missing(err error) bool { return errors.Is(err, unix.ENOENT) }

// elements is the body of a message about elements of a set.
func elements(set string, addrs []netip.Addr) []byte {
	var list []byte
	for _, a := range addrs {
		key := nl.Attr(unix.NFTA_DATA_VALUE, a.AsSlice())
		list = append(list, nl.Nested(unix.NFTA_LIST_ELEM, nl.Nested(unix.NFTA_SET_ELEM_KEY, key))...)
	}
	out := nl.Text(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
	out = append(out, nl.Text(unix.NFTA_SET_ELEM_LIST_SET, set)...)
	return append(out, nl.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list)...)
}
