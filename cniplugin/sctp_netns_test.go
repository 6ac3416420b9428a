package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/sctp"
)

// TestSCTPReachesAPodByItsHostPort asks for a port of the host with SCTP, which portmap translates with either kind of rules.
func TestSCTPReachesAPodByItsHostPort(t *testing.T) {
	sctp.Need(t)
	for _, rules := range []string{"iptables", "nftables"} {
		t.Run(rules, func(t *testing.T) {
			w := newWorld(t)
			client, p := w.client("sctp-client"), w.pod("sctp-pod")
			chained := portmap()
			chained["backend"] = rules
			ctx, l, c := context.Background(), w.list("1.0.0", chained), w.cni()
			rt := p.runtimeConf()
			rt.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 8132, "containerPort": 132, "protocol": "sctp"}}}
			_, err := c.AddNetworkList(ctx, l, rt)
			w.must(err)
			for _, f := range w.lane.Families() {
				var server *sctp.Listener
				w.within(p, func() (err error) {
					server, err = sctp.Listen(netip.AddrPortFrom([2]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}[f], 132))
					return err
				})
				if err := w.associates(client, f, 8132); err != nil {
					t.Errorf("%s: %v", f, err)
				}
				server.Close()
			}
			w.must(c.DelNetworkList(ctx, l, rt))
			for _, f := range w.lane.Families() {
				if err := w.associates(client, f, 8132); err == nil {
					t.Errorf("%s: the port leads somewhere without a pod", f)
				}
			}
		})
	}
}

// associates connects from the client to a port of the host, within a few tries.
func (w *world) associates(client pod, f subnet.Family, port uint16) error {
	w.Helper()
	from := netip.MustParsePrefix(clientSide[f]).Addr()
	to := netip.AddrPortFrom(netip.MustParseAddr(hostOf(f)), port)
	var errs error
	for range 5 {
		var seen netip.AddrPort
		var err error
		w.within(client, func() error {
			seen, err = sctp.Seen(from, to, 2*time.Second)
			return nil
		})
		if err == nil && seen.Addr() != from {
			err = fmt.Errorf("the pod sees %s instead of %s", seen, from)
		}
		if err == nil {
			return nil
		}
		errs = errors.Join(errs, err)
	}
	return errs
}
