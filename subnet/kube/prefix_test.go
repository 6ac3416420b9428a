package kube

import "testing"

func TestParsePrefixCompletesAsFlannelDoes(t *testing.T) {
	for in, want := range map[string]string{
		DefaultPrefix: "flannel.alpha.coreos.com/", "org.com": "org.com/", "org.com/": "org.com/", "org.com/x": "org.com/x-",
		"org.com/x-": "org.com/x-", "org.com/x_y": "org.com/x_y-", "a-b.org.com/1": "a-b.org.com/1-",
	} {
		got, err := ParsePrefix(in)
		if err != nil || string(got) != want || got.Key("backend-type") != want+"backend-type" {
			t.Errorf("%q: %q %v, want %q", in, got, err, want)
		}
	}
}

func TestParsePrefixRefusesWhatFlannelOrTheAPIServerRefuses(t *testing.T) {
	for _, in := range []string{
		"", "/", "org", "org/", "org/x", "org.COM", "org.com/X", "org.com/x/y", "org.com//", "org com/x", ".com/x", "org..com/",
		"o_g.com/x", "-org.com/x", "org.com/-", "org.com/0123456789012345678901234567890123456789012345678901234567890123",
	} {
		if got, err := ParsePrefix(in); err == nil {
			t.Errorf("%q became %q", in, got)
		}
	}
}
