package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// procNet makes a /proc/sys/net of plain files.
func procNet(t *testing.T, values map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, value := range values {
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestD05AMissingModuleIsNamedWithItsCommand(t *testing.T) {
	dir := procNet(t, map[string]string{"ipv4/ip_forward": "1"})
	err := ensureSysctls(dir, [2]bool{true, false})
	if err == nil || !strings.Contains(err.Error(), "modprobe br_netfilter") {
		t.Errorf("got %v", err)
	}
}

func TestD05ASwitchThatIsOffIsTurnedOn(t *testing.T) {
	dir := procNet(t, map[string]string{"ipv4/ip_forward": "0", "bridge/bridge-nf-call-iptables": "0"})
	if err := ensureSysctls(dir, [2]bool{true, false}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"ipv4/ip_forward", "bridge/bridge-nf-call-iptables"} {
		if got, _ := os.ReadFile(filepath.Join(dir, path)); strings.TrimSpace(string(got)) != "1" {
			t.Errorf("%s is %q", path, got)
		}
	}
}

func TestASwitchThatIsOnInAnyWayIsLeftAlone(t *testing.T) {
	dir := procNet(t, map[string]string{"ipv6/conf/all/forwarding": "2", "bridge/bridge-nf-call-ip6tables": "1"})
	if err := ensureSysctls(dir, [2]bool{false, true}); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "ipv6/conf/all/forwarding")); string(got) != "2\n" {
		t.Errorf("forwarding is now %q", got)
	}
}

func TestAConfiguredSysctlDirectoryWins(t *testing.T) {
	if got := sysctlDir("/x"); got != "/x" {
		t.Errorf("got %q", got)
	}
	if got := sysctlDir(""); !strings.HasSuffix(got, "/proc/sys/net") {
		t.Errorf("got %q", got)
	}
}
