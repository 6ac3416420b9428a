package attach

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
)

// TableName is the nftables table, of family inet, that drops what is sent from or to the addresses in its sets. The
// agent makes it when there are policies, and takes it away when there are none.
const TableName = "weft-gate"

// SetName is the set of a family in it.
func SetName(f subnet.Family) string { return [2]string{"held-ipv4", "held-ipv6"}[f] }

// Stands reports whether the table is there, that is, whether new pods have to be held. The kernel is asked and not a
// file, since it is the kernel that lets packets pass: what it says holds while the agent is away, too, and from the very
// moment at which the agent begins to enforce.
func Stands() (bool, error) {
	c, err := dial()
	if err != nil {
		return false, fmt.Errorf("look for table %s: %w", TableName, err)
	}
	defer c.close()
	err = c.ask(message{kind: unix.NFT_MSG_GETTABLE, attrs: text(unix.NFTA_TABLE_NAME, TableName)})
	switch {
	case err == nil:
		return true, nil
	case missing(err) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL): // the latter: no nftables at all
		return false, nil
	}
	return false, fmt.Errorf("look for table %s: %w", TableName, err)
}

// Hold puts addresses into the sets. Without the table it does nothing, and says so by false.
func Hold(addrs []netip.Addr) (bool, error) {
	c, err := dial()
	if err != nil {
		return false, fmt.Errorf("hold %v: %w", addrs, err)
	}
	defer c.close()
	for _, f := range subnet.Families() {
		of := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return subnet.FamilyOf(a) != f })
		if len(of) == 0 {
			continue
		}
		err := c.change(message{kind: unix.NFT_MSG_NEWSETELEM, flags: unix.NLM_F_CREATE, attrs: elements(f, of)})
		if missing(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("hold %v: %w", addrs, err)
		}
	}
	return true, nil
}

// Release takes addresses out of the sets; those that are not in them are fine.
func Release(addrs []netip.Addr) error {
	c, err := dial()
	if err != nil {
		return fmt.Errorf("release %v: %w", addrs, err)
	}
	defer c.close()
	for _, a := range addrs { // one by one: one that is not there would keep the others in
		f := subnet.FamilyOf(a)
		err := c.change(message{kind: unix.NFT_MSG_DELSETELEM, attrs: elements(f, []netip.Addr{a})})
		if err != nil && !missing(err) {
			return fmt.Errorf("release %v: %w", a, err)
		}
	}
	return nil
}

// missing tells that there is no such table, set or element.
func missing(err error) bool { return errors.Is(err, unix.ENOENT) }

// elements is the body of a message about elements of a set.
func elements(f subnet.Family, addrs []netip.Addr) []byte {
	var list []byte
	for _, a := range addrs {
		key := attr(unix.NFTA_DATA_VALUE, a.AsSlice())
		list = append(list, nested(unix.NFTA_LIST_ELEM, nested(unix.NFTA_SET_ELEM_KEY, key))...)
	}
	out := text(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
	out = append(out, text(unix.NFTA_SET_ELEM_LIST_SET, SetName(f))...)
	return append(out, nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list)...)
}
