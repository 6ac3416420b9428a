package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// list encodes a list, with a preamble of the kind that the API server sends.
func list(meta string, objects ...string) []byte {
	field := func(to []byte, tag uint64, data string) []byte {
		to = binary.AppendUvarint(binary.AppendUvarint(to, tag), uint64(len(data)))
		return append(to, data...)
	}
	body := field(nil, fieldOne, meta)
	for _, o := range objects {
		body = field(body, fieldTwo, o)
	}
	return field(field([]byte(Magic), fieldOne, "v1 NodeList"), fieldTwo, string(body))
}

// read gives what a list holds.
func read(data []byte) (meta string, objects []string, err error) {
	err = ReadList(bufio.NewReaderSize(bytes.NewReader(data), 16), Sink{
		Meta:   func(b []byte) error { meta = string(b); return nil },
		Object: func(b []byte) error { objects = append(objects, string(b)); return nil },
	})
	return meta, objects, err
}

func TestReadListHandsOutEveryObject(t *testing.T) {
	want := []string{"a", "", strings.Repeat("b", 10000)}
	meta, got, err := read(list("77", want...))
	if err != nil || meta != "77" {
		t.Errorf("%q %v", meta, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReadListRefusesWhatIsCutOffAnywhere(t *testing.T) {
	data := list("77", "first", "second")
	for i := range data {
		if _, objects, err := read(data[:i]); err == nil {
			t.Errorf("cut at %d of %d: %q", i, len(data), objects)
		}
	}
}

func TestReadListPassesOnWhatItsSinkSays(t *testing.T) {
	bad := errors.New("no Node")
	err := ReadList(bufio.NewReader(bytes.NewReader(list("1", "x"))), Sink{
		Meta: func([]byte) error { return nil }, Object: func([]byte) error { return bad },
	})
	if !errors.Is(err, bad) {
		t.Error(err)
	}
}

// FuzzReadNodeList fuzzes what is ours of reading a list; what an object is made of is decoded by the API's own code.
func FuzzReadNodeList(f *testing.F) {
	f.Add(list("77", "a", "b"))
	f.Add([]byte(Magic + "\x12\x04\x12\x02\x0a\x09"))
	f.Add([]byte(Magic + "\x12\xff\xff\xff\xff\x0f" + "\x12\xff\xff\xff\xff\x7f"))
	f.Fuzz(func(t *testing.T, data []byte) {
		total, held := 0, 0
		err := ReadList(bufio.NewReader(bytes.NewReader(data)), Sink{
			Meta:   func(b []byte) error { total += len(b); return nil },
			Object: func(b []byte) error { total += len(b); held++; return nil },
		})
		if total > len(data) {
			t.Errorf("%d bytes handed out of %d", total, len(data))
		}
		if err == nil && len(data) < len(Magic)+2 {
			t.Errorf("a list of %d bytes and %d objects", len(data), held)
		}
	})
}
