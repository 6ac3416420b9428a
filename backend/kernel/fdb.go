package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// setFDB makes a MAC lead to one destination, for good. Replacing is one message that no packet notices. It is not
// enough where Dump found more than one destination: the kernel then replaces the first and keeps the others, so the
// entry is taken away and set again.
func (c *Conn) setFDB(op Op) error {
	index, err := c.lookup(op.FDBKey.Link)
	if err != nil {
		return err
	}
	if !op.Replace {
		if err := c.delFDB(op.FDBKey); err != nil {
			return fmt.Errorf("remove its other destinations: %w", err)
		}
	}
	e := neighMsg{
		family: unix.AF_BRIDGE, index: index, state: unix.NUD_PERMANENT,
		mac: op.FDBKey.MAC, dst: op.FDB.Dst, port: op.FDB.Port,
	}
	return c.sendNeigh(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, e)
}

// delFDB removes a MAC with all its destinations: that is what the kernel does when the message names none.
func (c *Conn) delFDB(k FDBKey) error {
	index, err := c.lookup(k.Link)
	if err != nil {
		return gone(true, err)
	}
	return gone(true, c.sendNeigh(unix.RTM_DELNEIGH, 0, neighMsg{family: unix.AF_BRIDGE, index: index, mac: k.MAC}))
}
