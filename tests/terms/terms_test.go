package terms

import (
	"testing"

	"github.com/weft-cni/weft/subnet"
)

func TestInPutsWhatIsSaidOfIPv4IntoTheTermsOfIPv6(t *testing.T) {
	for text, want := range map[string]string{
		"10.244.3.0/24 via 10.244.3.0 dev flannel.1 proto 87 onlink":   "fd00:10:244:3::/64 via fd00:10:244:3:: dev flannel-v6.1 proto 87 onlink",
		"ip route del 10.244.16.0/22":                                  "ip -6 route del fd00:10:244:10::/62",
		"route show dev flannel.1":                                     "-6 route show dev flannel-v6.1",
		"ip addr add 192.168.50.31/16 dev eth0":                        "ip addr add fd00:50::1f/64 dev eth0",
		"0a:00:00:00:99:03 dev flannel.7 dst 192.168.101.2":            "0e:00:00:00:99:03 dev flannel-v6.7 dst fd00:50::6502",
		"ip addr add 10.244.0.1/16 dev docker0":                        "ip addr add fd00:10:244::1/48 dev docker0",
		"nft add rule ip nat in ip daddr 203.0.113.2 dnat to 10.0.0.1": "nft add rule ip6 nat in ip6 daddr fd00:203:0:71::2 dnat to fd00:10::1",
		"iptables-nft -P FORWARD DROP":                                 "ip6tables-nft -P FORWARD DROP",
		"10.244.1.0/32":                                                "fd00:10:244:1::/128",
		"ip=fd00::1":                                                   "ip=192.0.2.1",
		"01:00:5e:00:00:01":                                            "01:00:5e:00:00:01",
		"ip link set eth0 mtu 1400":                                    "ip link set eth0 mtu 1400",
		"239.1.1.1":                                                    "ff05::1:1",
		"0.0.0.0/0":                                                    "::/0",
	} {
		if got := In(subnet.IPv6, text); got != want {
			t.Errorf("%s\n is %s\nwant %s", text, got, want)
		}
		if got := In(subnet.IPv4, text); got != text {
			t.Errorf("%s became %s for IPv4", text, got)
		}
	}
	const section = "flannel.1 UP mtu 1450 address 0a:00:00:00:00:01\n"
	if got := Section(subnet.IPv6, section); got != "flannel-v6.1 UP mtu 1430 address 0e:00:00:00:00:01\n" {
		t.Errorf("a section is %s", got)
	}
}
