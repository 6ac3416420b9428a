package traffic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/nstest"
)

// K-01: a distribution's own flannel, which knows nothing of our lock, writes its rules again as soon as they are gone.
func TestK01AFlannelThatRunsBesidesUsIsNamedAndItsRulesGoWhenItHasEnded(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		row, proto := families()[f.Family], families()[f.Family].Proto
		for mode, write := range map[string]func(*nstest.NS) error{
			"iptables": func(ns *nstest.NS) error {
				_, err := ns.Input("*nat\n:FLANNEL-POSTRTG - [0:0]\n-A FLANNEL-POSTRTG -s "+f.in("10.244.0.0/16")+" -j MASQUERADE\n"+
					"-A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG\nCOMMIT\n", row.Tool+"-nft-restore", "--noflush")
				return err
			},
			"nftables": func(ns *nstest.NS) error {
				_, err := ns.Input("add table "+proto+" "+row.FlannelNF+"\nadd chain "+proto+" "+row.FlannelNF+
					" postrtg { type nat hook postrouting priority 100; }\nadd rule "+proto+" "+row.FlannelNF+" postrtg masquerade\n", "nft", "-f", "-")
				return err
			},
		} {
			t.Run(mode, func(t *testing.T) {
				ns, c := nstest.New(t), f.single()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				m := manager(ns)
				named := func() bool {
					return slices.ContainsFunc(sync(t, m, c).Problems, func(p string) bool { return strings.HasPrefix(p, "flannel writes rules") })
				}
				if err := write(ns); err != nil {
					t.Fatal(err)
				}
				sync(t, m, c) // the first: what a flannel of before has left is nobody's
				if named() || strings.Contains(strings.ToLower(ns.NFT()), "flannel") {
					t.Fatalf("after the first round:\n%s", ns.NFT())
				}
				m.Watch(ctx)
				nstest.Eventually(t, patience, func() error { return listened(ns) })
				if err := write(ns); err != nil {
					t.Fatal(err)
				}
				nstest.Eventually(t, patience, func() error {
					if !named() {
						return errors.New("it is not named")
					}
					return nil
				})
				if !strings.Contains(strings.ToLower(ns.NFT()), "flannel") {
					t.Error("its rules are removed while it writes them")
				}
				m.returns.quiet = time.Millisecond
				nstest.Eventually(t, patience, func() error {
					if text := ns.NFT(); named() || strings.Contains(strings.ToLower(text), "flannel") {
						return fmt.Errorf("it is named, or its rules stay:\n%s", text)
					}
					return nil
				})
			})
		}
	})
}
