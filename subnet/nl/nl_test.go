package nl

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestAttributesAreTakenApartAsTheyWerePutTogether(t *testing.T) {
	in := append(Text(1, "cni0"), Number(2, 0x01020304)...)
	in = append(in, Nested(3, append(Attr(4, []byte{1, 2, 3, 4, 5}), Attr(5, nil)...))...)
	if len(in)%4 != 0 {
		t.Errorf("%d bytes: attributes end at multiples of four", len(in))
	}
	got := Attrs(in)
	want := map[uint16][]byte{
		1: []byte("cni0\x00"), 2: binary.NativeEndian.AppendUint32(nil, 0x01020304), 3: append(Attr(4, []byte{1, 2, 3, 4, 5}), Attr(5, nil)...),
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[uint16][]byte{4: {1, 2, 3, 4, 5}, 5: {}}, Attrs(got[3])); d != "" {
		t.Errorf("nested (-want +got):\n%s", d)
	}
}

func TestWhatIsCutShortIsLeftOut(t *testing.T) {
	whole := append(Number(1, 7), Text(2, "eth0")...)
	for n := range whole {
		got := Attrs(whole[:n])
		if _, first := got[1]; first != (n >= 8) || got[2] != nil && n < 8+9 {
			t.Errorf("of %d bytes: %v", n, got)
		}
	}
	if got := Attrs([]byte{3, 0, 1, 0, 9, 9, 9, 9}); len(got) > 0 {
		t.Errorf("an attribute that is shorter than its header: %v", got)
	}
}

// lo answers in every network namespace, and needs no rights.
func TestTheKernelAnswersAndSaysNo(t *testing.T) {
	c, err := Dial(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Strict(); err != nil {
		t.Fatal(err)
	}
	var names []string
	header := make([]byte, unix.SizeofIfInfomsg)
	err = c.Dump(Request{Kind: unix.RTM_GETLINK, Body: header}, func(b []byte) {
		names = append(names, unix.ByteSliceToString(Attrs(b[unix.SizeofIfInfomsg:])[unix.IFLA_IFNAME]))
	})
	if err != nil || !cmp.Equal(names[:1], []string{"lo"}) {
		t.Errorf("links %q, %v", names, err)
	}
	missing := append(header, Text(unix.IFLA_IFNAME, "weft-is-not")...)
	out, seq := c.Frame(Request{Kind: unix.RTM_GETLINK, Flags: unix.NLM_F_ACK, Body: missing})
	if err := c.Exchange(out, seq, seq, nil); !errors.Is(err, unix.ENODEV) {
		t.Errorf("asked for a link that is not there: %v", err)
	}
}
