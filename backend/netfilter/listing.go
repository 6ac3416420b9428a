package netfilter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// List runs `nft -j list`. What does not exist lists as the empty text.
func (h Host) List(ctx context.Context, what ...string) (string, error) {
	text, err := h.Run(ctx, "", append([]string{"nft", "-j", "list"}, what...)...)
	if err != nil && strings.Contains(err.Error(), "No such file or directory") {
		return "", nil
	}
	return text, err
}

// Object holds the fields of every kind of object in a listing that anybody here looks at. Names that hold several kinds of
// JSON are raw.
type Object struct {
	Family  string            `json:"family"`
	Name    string            `json:"name"`
	Table   string            `json:"table"`
	Chain   string            `json:"chain"`
	Comment string            `json:"comment"`
	Type    json.RawMessage   `json:"type"`
	Hook    string            `json:"hook"`
	Prio    int               `json:"prio"`
	Policy  string            `json:"policy"`
	Flags   json.RawMessage   `json:"flags"`
	Elem    []json.RawMessage `json:"elem"`
	Expr    []json.RawMessage `json:"expr"`
	Packets uint64            `json:"packets"`
	Bytes   uint64            `json:"bytes"`
}

// Objects calls f for each object of a listing, in its order.
func Objects(text string, f func(kind string, o Object)) error {
	var list struct {
		Nftables []map[string]json.RawMessage `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return fmt.Errorf("read nft's listing: %w", err)
	}
	for _, entry := range list.Nftables {
		for kind, raw := range entry {
			var o Object
			err := json.Unmarshal(raw, &o)
			// Other kinds may use a name otherwise, as a ct timeout does "policy": what is theirs is left out.
			if other := new(json.UnmarshalTypeError); errors.As(err, &other) && !slices.Contains([]string{"table", "chain", "rule", "set", "map", "element"}, kind) {
				err = nil
			}
			if err != nil {
				return fmt.Errorf("read nft's listing of a %s: %w", kind, err)
			}
			f(kind, o)
		}
	}
	return nil
}

// Word is a JSON string, or the raw JSON of what is none.
func Word(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// Key is an element of a set as nft lists it. One of the fields has a value.
type Key struct {
	Word   string
	Prefix netip.Prefix // as it is spelled: bits behind it are kept
	Range  []string     // its ends
	Concat []string     // its parts
}

// ParseKey reads an element of a set. With a time-out or a counter, nft wraps what it lists: wrapped tells. What is none of the
// forms of Key is the zero Key.
func ParseKey(raw json.RawMessage) (k Key, wrapped bool) {
	if json.Unmarshal(raw, &k.Word) == nil {
		return k, false
	}
	var e struct {
		Concat []json.RawMessage `json:"concat"`
		Range  []string          `json:"range"`
		Prefix struct {
			Addr netip.Addr `json:"addr"`
			Len  int        `json:"len"`
		} `json:"prefix"`
		Elem struct {
			Val json.RawMessage `json:"val"`
		} `json:"elem"`
	}
	if json.Unmarshal(raw, &e) != nil {
		return Key{}, false
	}
	if len(e.Elem.Val) > 0 {
		k, _ = ParseKey(e.Elem.Val)
		return k, true
	}
	if e.Prefix.Addr.IsValid() {
		k.Prefix = netip.PrefixFrom(e.Prefix.Addr, e.Prefix.Len)
	}
	if len(e.Range) == 2 {
		k.Range = e.Range
	}
	for _, part := range e.Concat {
		k.Concat = append(k.Concat, Word(part))
	}
	return k, false
}
