package vm

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestClosureHoldsWhatASeedDependsOnAndSkipsWhatTheKernelLacks(t *testing.T) {
	dep := `kernel/net/sctp/sctp.ko: kernel/net/ipv6/ip6_udp_tunnel.ko kernel/lib/libcrc32c.ko
kernel/net/ipv6/ip6_udp_tunnel.ko: kernel/net/ipv4/udp_tunnel.ko
kernel/net/ipv4/udp_tunnel.ko:
kernel/lib/libcrc32c.ko:
kernel/drivers/net/dummy.ko:
kernel/crypto/ghash-generic.ko:
`
	got, err := closure(dep, "sctp ghash_generic\nno_such_module")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"kernel/crypto/ghash-generic.ko", "kernel/lib/libcrc32c.ko", "kernel/net/ipv4/udp_tunnel.ko", "kernel/net/ipv6/ip6_udp_tunnel.ko",
		"kernel/net/sctp/sctp.ko",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := closure("no colon here", "sctp"); err == nil {
		t.Error("a broken modules.dep is read")
	}
}

func TestAnArchiveIsReadByCpio(t *testing.T) {
	if _, err := exec.LookPath("busybox"); err != nil {
		t.Skip("busybox is not installed: make deps")
	}
	var b bytes.Buffer
	a := newArchive(&b)
	a.entry("/etc/deep/file", modeFile|0o644, []byte("odd"))
	a.link("/bin", "usr/bin")
	a.entry("/etc/deep/file", modeFile|0o644, []byte("the first one counts"))
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("busybox", "cpio", "-t")
	cmd.Stdin = &b
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff("etc\netc/deep\netc/deep/file\nbin\n", string(out)); d != "" {
		t.Error(d)
	}
}

func TestAWordForTheShellComesThroughAsItIs(t *testing.T) {
	for _, word := range []string{"", "it's", "$HOME", "a b", `"\`, filepath.Join("a", "*")} {
		out, err := exec.Command("sh", "-c", "printf %s "+quote(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q became %q, %v", word, out, err)
		}
	}
}
