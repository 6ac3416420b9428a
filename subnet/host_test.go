package subnet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheHostsFileIsReadAsItIsWritten(t *testing.T) {
	env := filepath.Join(t.TempDir(), "subnet.env")
	if h, err := LoadHost(env); h != (Host{}) || err != nil {
		t.Errorf("no file: %v, %v", h, err)
	}
	for _, want := range []Host{{}, {Rules: "iptables"}, {Rules: "nftables"}} {
		b, err := want.Render()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(env), HostName), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := LoadHost(env); got != want || err != nil {
			t.Errorf("%s: %v, %v", b, got, err)
		}
	}
}

func TestAHostsFileThatSaysNothingIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		"": "EOF", "[]": "cannot unmarshal", `{"rules":7}`: "cannot unmarshal", `{"rules":"ebtables"}`: "want iptables or nftables", `{} {}`: "more follows",
	} {
		if _, err := ParseHost([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want ... %s", text, err, want)
		}
	}
	if h, err := ParseHost([]byte(`{"rules":"iptables","later":1}`)); err != nil || h.Rules != "iptables" {
		t.Errorf("%v, %v", h, err)
	}
}

func FuzzParseHost(f *testing.F) {
	f.Add([]byte(`{"rules":"nftables"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHost(b)
		if err != nil {
			return
		}
		out, err := h.Render()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseHost(out); again != h || err != nil {
			t.Errorf("%q: %v, then %v, %v", b, h, again, err)
		}
	})
}
