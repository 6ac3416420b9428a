package vm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

// shell runs a line in a machine.
func shell(t *testing.T, line string, timeout time.Duration) (status int, out, console string) {
	t.Helper()
	cache, err := Cache()
	if err != nil {
		t.Fatal(err)
	}
	var o, c bytes.Buffer
	status, err = Run(t.Context(), Job{
		Cache: cache, Args: []string{"/bin/busybox", "env", "dash", "-c", line}, Dir: t.TempDir(), Timeout: timeout,
		Env: []string{"GREETING=it's me"}, Out: &o, Log: &c,
	})
	if err != nil {
		t.Fatal(err)
	}
	return status, o.String(), c.String()
}

func TestOutputAndStatusComeBackAsTheProgramLeftThem(t *testing.T) {
	status, out, _ := shell(t, `printf '%s\r\n\0' "$GREETING"; echo two >&2; id -u; exit 7`, 3*time.Minute)
	if want := "it's me\r\n\x00two\n0\n"; status != 7 || out != want {
		t.Errorf("status %d, output %q; want 7, %q", status, out, want)
	}
}

func TestAMachineThatEndsWithoutAStatusSaysSo(t *testing.T) {
	if status, _, console := shell(t, "echo c >/proc/sysrq-trigger; sleep 60", 3*time.Minute); status != StatusNone || !strings.Contains(console, "sysrq") {
		t.Errorf("after a panic: status %d, console %q", status, console)
	}
	if status, _, _ := shell(t, "sleep 300", 20*time.Second); status != StatusTimeout {
		t.Errorf("after the time was up: status %d", status)
	}
}

func TestTheKernelHasWhatThisOneLacks(t *testing.T) {
	var script strings.Builder
	for name, line := range map[string]string{
		"WireGuard": "ip link add x1 type wireguard",
		"IPIP":      "ip link add x2 type ipip local 192.0.2.1 remote 192.0.2.2",
		"IP6 in 6":  "ip link add x3 type ip6tnl mode any local 2001:db8::1 remote 2001:db8::2",
		"dummy":     "ip link add x4 type dummy",
		"netem":     "tc qdisc add dev lo root netem delay 100ms loss 5%",
		"SCTP":      "modprobe sctp; test -d /proc/net/sctp",
		"nfqueue":   "nft add table inet x; nft add chain inet x y '{ type filter hook forward priority 0; }'; nft add rule inet x y queue num 1",
	} {
		fmt.Fprintf(&script, "(%s) || echo no %s\n", line, name)
	}
	if status, out, console := shell(t, script.String(), 3*time.Minute); status != 0 || out != "" {
		t.Errorf("status %d\n%s%s", status, out, console)
	}
}

func TestTheKernelIsTheOneThatIsNamedAndItsClockRunsRight(t *testing.T) {
	cache, err := Cache()
	if err != nil {
		t.Fatal(err)
	}
	want, err := Kernel(t.Context(), cache)
	if err != nil {
		t.Fatal(err)
	}
	var out clocked
	if status, err := Run(t.Context(), Job{
		Cache: cache, Args: []string{"/bin/busybox", "env", "dash", "-c", "uname -r; cut -d. -f1 /proc/uptime; sleep 10; cut -d. -f1 /proc/uptime"},
		Dir: t.TempDir(), Timeout: 2 * time.Minute, Out: &out, Log: t.Output(),
	}); err != nil || status != 0 {
		t.Fatal(status, err)
	}
	words := strings.Fields(out.text.String())
	if len(words) != 3 || words[0] != want {
		t.Fatalf("%q; want kernel %s", words, want)
	}
	t.Logf("Linux %s; ten seconds in it took %v here", want, out.last.Sub(out.first))
	if span := out.last.Sub(out.first); span < 8*time.Second { // a slow machine may take longer; a clock that runs fast is wrong
		t.Errorf("ten seconds in the machine took %v here", span)
	}
}

// clocked notes when the first and the last output came.
type clocked struct {
	text        strings.Builder
	first, last time.Time
}

func (c *clocked) Write(b []byte) (int, error) {
	c.last = time.Now()
	if c.first.IsZero() {
		c.first = c.last
	}
	return c.text.Write(b)
}
