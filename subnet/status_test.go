package subnet

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestStatusComesBackAsItWasWritten(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, want := range []Status{
		{Device: "flannel.1", Ready: true, Time: at},
		{Device: "flannel.1", Devices: []string{"flannel.1", "flannel-v6.1"}, Ready: true, Time: at},
		{Reason: "waiting for podCIDR of node n1", Time: at},
		{Ready: true, Reason: "API away since 12:00, peers are as of then", Time: at},
	} {
		b, err := want.Render()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseStatus(b)
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", b, d)
		}
	}
}

func TestParseStatusRefusesWhatItCannotTrust(t *testing.T) {
	const ok = `{"device":"flannel.1","ready":true,"reason":"","time":"2026-11-30T12:00:00Z","later":1}`
	if _, err := ParseStatus([]byte(ok)); err != nil {
		t.Fatalf("a key of a newer agent: %v", err)
	}
	for in, want := range map[string]string{
		``:      "EOF",
		ok[:30]: "unexpected EOF",
		ok + ok: "more follows",
		`[]`:    "cannot unmarshal array",
		`{"device":"flannel.1","reason":"","time":"2026-11-30T12:00:00Z"}`:                             "ready is missing",
		`{"ready":true,"time":"yesterday"}`:                                                            "parsing time",
		`{"ready":true}`:                                                                               "time is missing",
		`{"ready":false,"time":"2026-11-30T12:00:00Z"}`:                                                "no reason is given",
		`{"ready":false,"reason":"a\nb","time":"2026-11-30T12:00:00Z"}`:                                "line ends",
		`{"ready":true,"device":"a/b","time":"2026-11-30T12:00:00Z"}`:                                  "no interface name",
		`{"ready":true,"devices":["flannel.1",""],"time":"2026-11-30T12:00:00Z"}`:                      "no interface name",
		`{"ready":true,"devices":["flannel.1","../x"],"time":"2026-11-30T12:00:00Z"}`:                  "no interface name",
		`{"ready":true,"devices":["a","b","c","d","e","f","g","h","i"],"time":"2026-11-30T12:00:00Z"}`: "9 devices",
		`{"ready":false,"reason":"` + strings.Repeat("x", 5000) + `","time":"2026-11-30T12:00:00Z"}`:   "at most 4096",
		strings.Repeat(" ", 70000):                                                                     "70000 bytes",
	} {
		_, err := ParseStatus([]byte(in))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: got %v, want ... %q", in, err, want)
		}
	}
}

func TestRenderTakesAnyReason(t *testing.T) {
	long := strings.Repeat("é", 4000)
	for in, want := range map[string]string{
		"nft: line 1:\n\tno such file\r\n": "nft: line 1:  no such file  ",
		"caf\xff\x00":                      "caf ",
		long:                               long[:4092] + "...",
	} {
		b, err := Status{Reason: in, Time: time.Now()}.Render()
		if err != nil {
			t.Errorf("%.40q: %v", in, err)
			continue
		}
		got, err := ParseStatus(b)
		if d := cmp.Diff(want, got.Reason); err != nil || d != "" {
			t.Errorf("%.40q: %v (-want +got):\n%s", in, err, d)
		}
	}
}

func TestRenderRefusesAStatusThatParseWouldRefuse(t *testing.T) {
	for _, s := range []Status{{}, {Time: time.Now()}, {Ready: true, Time: time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)}} {
		if b, err := s.Render(); err == nil {
			t.Errorf("%+v rendered as %s", s, b)
		}
	}
}

func TestInterfaceNamesAreThoseOfTheKernel(t *testing.T) {
	for name, want := range map[string]bool{
		"eth0": true, "flannel.1": true, "fifteen-letters": true, "": false, ".": false, "..": false,
		"sixteen-letters-": false, "a b": false, "a/b": false, "a:b": false, "a\x00": false, "a\xff": false,
	} {
		if got := ValidIfName(name); got != want {
			t.Errorf("%q: got %v, want %v", name, got, want)
		}
	}
}

func FuzzParseStatus(f *testing.F) {
	f.Add([]byte(`{"device":"flannel.1","ready":true,"reason":"","time":"2026-11-30T12:00:00Z"}`))
	f.Add([]byte(`{"ready":false,"reason":"waiting","time":"2026-11-30T12:00:00+02:00"}`))
	f.Add([]byte(`{"Ready":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseStatus(b)
		if err != nil {
			return
		}
		out, err := s.Render()
		if err != nil {
			t.Fatalf("%q was read as %+v, which does not render: %v", b, s, err)
		}
		again, err := ParseStatus(out)
		if err != nil || !again.Time.Equal(s.Time) {
			t.Fatalf("%q: %+v became %+v (%v)", b, s, again, err)
		}
	})
}
