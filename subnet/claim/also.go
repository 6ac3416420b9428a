package claim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// Bounds of backend-also: a node speaks few kinds, each said in a hundred bytes.
const (
	maxAlso      = 4 << 10
	mostAlso     = 8
	maxAlsoWord  = 40
	alsoExpected = `like [{"Type":"vxlan","Data":{"VNI":1,"VtepMAC":"0a:1b:2c:3d:4e:5f"},"Port":4789}]`
)

// alsoEntry is one element of backend-also. Data is what backend-data would hold if the kind were the node's own.
type alsoEntry struct {
	Type   string
	Data   json.RawMessage `json:",omitempty"`
	V6Data json.RawMessage `json:",omitempty"`
	Port   *uint16         `json:",omitempty"` // of VXLAN
}

func (e alsoEntry) data(f subnet.Family) string {
	s := string([2]json.RawMessage{e.Data, e.V6Data}[f])
	if s == "null" {
		return ""
	}
	return s
}

// also is the text of backend-also; "" when nothing is spoken besides.
func (s Speech) also(on [2]bool) string {
	var list []alsoEntry
	for _, kind := range s.Also.List() {
		e := alsoEntry{Type: kind}
		for _, f := range subnet.Families() {
			if data := s.data(kind, f); on[f] && data != noData {
				*[2]*json.RawMessage{&e.Data, &e.V6Data}[f] = json.RawMessage(data)
			}
		}
		if kind == subnet.VXLAN && s.Port != 0 {
			e.Port = &s.Port
		}
		list = append(list, e)
	}
	if len(list) == 0 {
		return ""
	}
	text, err := json.Marshal(list)
	if err != nil {
		panic(fmt.Sprintf("marshal %s: %v", KeyBackendAlso, err)) // impossible: the parts are our own JSON
	}
	return string(text)
}

// parseAlso reads backend-also of a node whose own kind is given; ports are WireGuard's where it names none. A kind that we do
// not know is passed over: the node may be newer than we are. Anything else that is not as it should be is an error, and then
// nothing of it counts.
func parseAlso(text, own string, ports [2]uint16) (Speech, error) {
	if text == "" {
		return Speech{}, nil
	}
	var list []alsoEntry
	if len(text) > maxAlso {
		return Speech{}, fmt.Errorf("has %d bytes: want at most %d", len(text), maxAlso)
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil || list == nil {
		return Speech{}, fmt.Errorf("%.80q is not %s", text, alsoExpected)
	}
	if len(list) > mostAlso {
		return Speech{}, fmt.Errorf("has %d entries: want at most %d", len(list), mostAlso)
	}
	e := ear{Speech: Speech{Type: own}, ports: ports}
	var seen []string
	for _, entry := range list {
		switch kind := entry.Type; {
		case kind == "" || len(kind) > maxAlsoWord:
			return Speech{}, fmt.Errorf("has an entry of Type %.40q", kind)
		case kind == own || slices.Contains(seen, kind):
			return Speech{}, fmt.Errorf("says %q twice", kind)
		}
		seen = append(seen, entry.Type)
		if err := e.add(entry); err != nil {
			return Speech{}, fmt.Errorf("%q: %w", entry.Type, err)
		}
		e.Also |= subnet.KindsOf(entry.Type)
	}
	return e.Speech, nil
}

// add takes in what an entry says.
func (e *ear) add(entry alsoEntry) error {
	switch entry.Type {
	case subnet.Alloc:
		return errors.New("is no way to reach a node")
	case subnet.VXLAN:
		if entry.Port != nil && *entry.Port == 0 {
			return errors.New("the port 0 is not one from 1 to 65535")
		}
		if entry.Port != nil {
			e.Port = *entry.Port
		}
	case subnet.WireGuard:
	default:
		return nil
	}
	for _, f := range subnet.Families() {
		if data := entry.data(f); data != "" {
			if err := e.hear(entry.Type, f, data); err != nil {
				return err
			}
		}
	}
	if !e.heard.Has(entry.Type) {
		return errors.New("has neither Data nor V6Data")
	}
	return nil
}
