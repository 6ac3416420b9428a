package attach

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet/nl"
)

// SignName is an nftables table, of family inet and without content, by which an agent says that there are policies. It belongs to
// the agent's process, so nobody else can flush it: where it stands and the one of the held addresses does not, that one will be
// back in a moment.
const SignName = "weft-enforcing"

const (
	backSoon = 2 * time.Second      // how long the table of the held addresses may be gone while the sign stands
	backLook = 2 * time.Millisecond // between two looks
)

// ErrFlushed means that somebody has flushed nftables and the agent has not restored the table of the held addresses.
var ErrFlushed = errors.New("policies are enforced, but table " + TableName + " is gone, and no agent brings it back")

// Enforced reports whether new pods have to be held: the table stands, or has just been flushed by somebody.
func Enforced() (bool, error) {
	for _, name := range []string{TableName, SignName} {
		if there, err := exists(name); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// HoldWhileEnforced is Hold, and waits for the table while somebody else's flush has taken it.
func HoldWhileEnforced(addrs []netip.Addr) error {
	for begin := time.Now(); ; time.Sleep(backLook) {
		if held, err := Hold(addrs); held || err != nil {
			return err
		}
		if there, err := exists(SignName); !there || err != nil {
			return err
		}
		if time.Since(begin) > backSoon {
			return fmt.Errorf("hold %v: %w", addrs, ErrFlushed)
		}
	}
}

// exists asks the kernel for a table.
func exists(table string) (bool, error) {
	c, err := nl.DialNFTables()
	if err != nil {
		return false, fmt.Errorf("look for table %s: %w", table, err)
	}
	defer c.HangUp()
	err = c.Ask(nl.NFTMessage{Kind: unix.NFT_MSG_GETTABLE, Attrs: nl.Text(unix.NFTA_TABLE_NAME, table)})
	switch {
	case err == nil:
		return true, nil
	case missing(err) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL): // the latter: no nftables at all
		return false, nil
	}
	return false, fmt.Errorf("look for table %s: %w", table, err)
}
