package subnet

import (
	"fmt"
	"strings"
	"testing"
)

func TestKindsReadBackAsTheyAreWritten(t *testing.T) {
	for _, k := range []Kinds{0, KindsOf(VXLAN), KindsOf(IPIP, HostGW), KindsOf(BackendKinds()...)} {
		text, err := k.MarshalText()
		var back Kinds
		if err != nil || back.UnmarshalText(text) != nil || back != k {
			t.Errorf("%q reads back as %q", text, back)
		}
	}
	if got := KindsOf(IPIP, "udp", HostGW).String(); got != "host-gw,ipip" {
		t.Errorf("got %q", got)
	}
	if err := new(Kinds).UnmarshalText([]byte("vxlan,udp")); err == nil {
		t.Error("udp is taken for a kind")
	}
}

func TestNoVerbShowsASecret(t *testing.T) {
	s := Secret{0: 0xab, 31: 0xcd}
	key := Key(s).String()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		if got := fmt.Sprintf(verb, struct{ S Secret }{s}); strings.Contains(got, "171") || strings.Contains(strings.ToLower(got), "ab0") || strings.Contains(got, key) {
			t.Errorf("%s shows %s", verb, got)
		}
	}
}

func TestAKeyIsThirtyTwoBytesInBase64(t *testing.T) {
	want := Key{1, 2, 3}
	if got, err := ParseKey(want.String()); err != nil || got != want {
		t.Errorf("%s: %v", got, err)
	}
	for _, bad := range []string{"", "AAAA", want.String() + "\n", want.String()[1:]} {
		if _, err := ParseKey(bad); err == nil {
			t.Errorf("%q is taken for a key", bad)
		}
	}
}
