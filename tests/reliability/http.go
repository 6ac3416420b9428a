package reliability

import (
	"context"
	"net"
	"net/http"
	"time"
)

// client speaks HTTP inside the node's namespace.
func (n *Node) client() *http.Client {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		var conn net.Conn
		err := n.NS.Do(func() (err error) {
			var d net.Dialer
			conn, err = d.DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: dial, MaxIdleConns: 2}}
}
