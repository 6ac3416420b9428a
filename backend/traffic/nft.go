package traffic

import (
	"context"
	"fmt"

	"sigs.k8s.io/knftables"
)

// nft is the kernel's nftables as we use it: reading is one fork, writing is one transaction.
type nft struct {
	host host
	wrap func(knftables.Interface) knftables.Interface
	conn knftables.Interface // for our table; nil until the first use
}

// open finds out whether nft is there and new enough. It is tried again at each use until it succeeds, since the
// capability or the module that is missing now may come.
func (n *nft) open() error {
	if n.conn != nil {
		return nil
	}
	if _, err := n.host.Find("nft"); err != nil {
		return err
	}
	n.host.Note("nft", "--version")
	n.host.Note("nft", "--check")
	return n.host.Inside(func() error {
		conn, err := knftables.New(knftables.InetFamily, TableName)
		if err != nil {
			return fmt.Errorf("open nftables (nft 1.0.1 and kernel 5.10 are the floor): %w", err)
		}
		if n.wrap != nil {
			conn = n.wrap(conn)
		}
		n.conn = conn
		return nil
	})
}

// read returns the state of our table; a table that is not there is the empty state.
func (n *nft) read(ctx context.Context) (state, error) {
	text, err := n.host.List(ctx, "table", "inet", TableName)
	if err != nil || text == "" {
		return state{}, err
	}
	return parseTable(text)
}

// write carries out one transaction on our table.
func (n *nft) write(ctx context.Context, fill func(*knftables.Transaction)) error {
	if err := n.open(); err != nil {
		return err
	}
	tx := n.conn.NewTransaction()
	fill(tx)
	if tx.NumOperations() == 0 {
		return nil
	}
	n.host.Note("nft", "-f", "-")
	err := n.host.Inside(func() error { return n.conn.Run(ctx, tx) })
	if knftables.IsNotFound(err) { // what nft says when the kernel lacks an expression, and not which
		err = fmt.Errorf("%w (does the kernel have nft_chain_nat, nft_masq, nft_ct, nft_fib_inet?)", err)
	}
	if err != nil {
		return fmt.Errorf("write table inet %s: %w", TableName, err)
	}
	return nil
}
