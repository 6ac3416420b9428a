package underlay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/tests/nstest"
)

// Two machines on one link have one IPv6 address; the kernel of the second one finds out and does not use it.
func TestI01AnIPv6AddressThatAnotherMachineOnTheLinkHasIsNotPicked(t *testing.T) {
	nstest.NeedRoot(t)
	first, second := nstest.New(t), nstest.New(t)
	nstest.Veth(t, first, "eth0", second, "eth0")
	for _, ns := range []*nstest.NS{first, second} {
		ns.IP("link set eth0 up")
	}
	first.IP("-6 addr add fd00::11/64 dev eth0 nodad")
	second.Run("sysctl", "-qw", "net.ipv6.conf.eth0.accept_dad=1")
	second.IP("-6 addr add fd00::11/64 dev eth0")
	conn, err := kernel.OpenAt(second.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	nstest.Eventually(t, 20*time.Second, func() error {
		h, err := conn.Host(context.Background())
		if err != nil {
			return err
		}
		_, err = Pick(Options{Family: v6, Iface: []string{"eth0"}}, h)
		if err == nil {
			return errors.New("an address was picked")
		}
		if !strings.Contains(err.Error(), "so has another machine on the link") {
			return fmt.Errorf("picked with: %w", err)
		}
		return nil
	})
	second.IP("-6 addr add fd00::12/64 dev eth0 nodad")
	h, err := conn.Host(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if got := pick(t, Options{Family: v6, Iface: []string{"eth0"}}, h); got != "eth0 fd00::12" {
		t.Errorf("picked %s", got)
	}
}
