package subnet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
)

// confKey is one known key of a JSON object and what to do with its value, given as JSON text.
type confKey struct {
	name string
	set  func(raw string) error
}

// confReader walks the objects of net-conf.json in document order, so that the last of equal keys counts whatever
// their case, and gathers problems and warnings instead of stopping at the first.
type confReader struct {
	errs       []error
	warnings   []Warning
	unreadable bool // the file is no JSON object
}

// member is one key of an object with its value as it stands in the file.
type member struct{ key, value string }

func (r *confReader) fail(place, text string) {
	r.errs = append(r.errs, fmt.Errorf("%s: %s: %s", NetConfFile, place, text))
}

func (r *confReader) warn(place, text string) {
	r.warnings = append(r.warnings, Warning{Place: place, Text: text})
}

// missing is fail, unless the key is there and was already complained about.
func (r *confReader) missing(place, text string) {
	prefix := NetConfFile + ": " + place + ": "
	for _, err := range r.errs {
		if strings.HasPrefix(err.Error(), prefix) {
			return
		}
	}
	r.fail(place, text)
}

// document reads the whole file.
func (r *confReader) document(data []byte, keys []confKey) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // some editors put a byte order mark
	list, err := members(string(data))
	if err != nil {
		r.unreadable = true
		r.errs = append(r.errs, fmt.Errorf("%s: %w", NetConfFile, err))
		return
	}
	r.object("", list, keys)
}

// object hands each member to its key.
func (r *confReader) object(prefix string, list []member, keys []confKey) {
	seen := map[string]bool{}
	for _, m := range list {
		key, known := find(keys, m.key)
		if !known {
			r.unknown(prefix, m.key, keys)
			continue
		}
		if seen[key.name] {
			r.warn(prefix+key.name, "is there more than once: the last one counts")
		}
		seen[key.name] = true
		if m.value == "null" {
			continue // null leaves the default, as in flannel
		}
		if err := key.set(m.value); err != nil {
			var told placed
			if errors.As(err, &told) {
				continue
			}
			r.fail(prefix+key.name, err.Error())
		}
	}
}

// placed is returned by a setter that has already filed its problems.
type placed struct{}

func (placed) Error() string { return "problem already filed" }

func find(keys []confKey, name string) (confKey, bool) {
	for _, k := range keys {
		if strings.EqualFold(k.name, name) {
			return k, true
		}
	}
	return confKey{}, false
}

func (r *confReader) unknown(prefix, name string, keys []confKey) {
	text := "is not a known key and has no effect"
	if near := nearestKey(name, keys); near != "" {
		text += fmt.Sprintf(": did you mean %q?", near)
	} else if _, ok := find(vxlanKeys(nil, &Backend{}), name); ok && prefix == "" {
		text += ": it belongs into Backend"
	}
	r.warn(prefix+shorten(name), text)
}

func nearestKey(name string, keys []confKey) string {
	if len(name) > 40 {
		return ""
	}
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	return Nearest(name, names)
}

// members splits a JSON object. It refuses anything else, and anything after the object.
func members(text string) ([]member, error) {
	var probe any
	if err := json.Unmarshal([]byte(text), &probe); err != nil {
		return nil, fmt.Errorf("%w%s", err, at(text, err))
	}
	dec := json.NewDecoder(strings.NewReader(text))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, fmt.Errorf("%s is not a JSON object: write { \"Key\": value, ... }", shorten(strings.TrimSpace(text)))
	}
	var list []member
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		list = append(list, member{fmt.Sprint(key), string(value)})
	}
	return list, nil
}

// at tells line and column of a syntax error, which people find faster than a byte offset.
func at(text string, err error) string {
	offset := int64(-1)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.Is(err, io.ErrUnexpectedEOF), text == "":
		offset = int64(len(text))
	}
	if offset < 0 || offset > int64(len(text)) {
		return ""
	}
	before := text[:offset]
	return fmt.Sprintf(" (line %d, column %d)", strings.Count(before, "\n")+1, len(before)-strings.LastIndexByte(before, '\n')-1)
}

// shorten keeps hostile or huge values out of the log, and each problem on one line.
func shorten(s string) string {
	const limit = 60
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}

func boolean(dst *bool) func(string) error {
	return func(raw string) error {
		if raw != "true" && raw != "false" {
			return fmt.Errorf("%s is not a boolean: write true or false, without quotes", shorten(raw))
		}
		*dst = raw == "true"
		return nil
	}
}

func number[T int | uint16 | uint32](low, high int, dst *T) func(string) error {
	return func(raw string) error {
		n, err := strconv.Atoi(raw)
		switch {
		case err != nil && strings.HasPrefix(raw, `"`):
			return fmt.Errorf("%s is text: write a whole number without quotes", shorten(raw))
		case err != nil && !errors.Is(err, strconv.ErrRange):
			return fmt.Errorf("%s is not a whole number", shorten(raw))
		case err != nil || n < low || n > high:
			return fmt.Errorf("%s is out of range: use %d to %d", shorten(raw), low, high)
		}
		*dst = T(n)
		return nil
	}
}

// orUnset lets 0 stand for "not set" in front of a range check.
func orUnset(set func(string) error) func(string) error {
	return func(raw string) error {
		if raw == "0" {
			return nil
		}
		if err := set(raw); err != nil {
			return fmt.Errorf("%w, or leave it out", err)
		}
		return nil
	}
}

func text(dst *string) func(string) error {
	return func(raw string) error {
		if err := json.Unmarshal([]byte(raw), dst); err != nil {
			return fmt.Errorf("%s is not text: write it in double quotes", shorten(raw))
		}
		return nil
	}
}

func address(f Family) func(string) error {
	return func(raw string) error {
		var s string
		if err := text(&s)(raw); err != nil {
			return err
		}
		if a, err := netip.ParseAddr(s); s != "" && (err != nil || FamilyOf(a) != f) {
			return fmt.Errorf("%q is not an %v address", shorten(s), f)
		}
		return nil
	}
}

// network reads a range, masks host bits as flannel does and refuses what can hold no pods.
func network(f Family, dst *netip.Prefix) func(string) error {
	return func(raw string) error {
		var s string
		if err := text(&s)(raw); err != nil {
			return err
		}
		if s == "" {
			*dst = netip.Prefix{}
			return nil
		}
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return fmt.Errorf("%q is not a CIDR: write an %v range like %s", shorten(s), f, [2]string{"10.244.0.0/16", "fd00:10:244::/56"}[f])
		}
		key, _ := networkKeys(f)
		other, _ := networkKeys(1 - f)
		switch {
		case p.Addr().Is4In6():
			return fmt.Errorf("%q is an IPv4 address in IPv6 notation: write it as plain IPv4 into Network", s)
		case FamilyOf(p.Addr()) != f:
			return fmt.Errorf("%q is an %v range: it belongs into %s; %s takes %v", s, 1-f, other, key, f)
		case p.Bits() == 0:
			return fmt.Errorf("%q is the whole address space: name the range that pods get their addresses from", s)
		case p.Bits() > p.Addr().BitLen()-2:
			return fmt.Errorf("%q has no room for a pod: use a shorter prefix", s)
		case p.Masked().Addr().IsLoopback(), p.Masked().Addr().IsMulticast(), p.Masked().Addr().IsLinkLocalUnicast():
			return fmt.Errorf("%q is a loopback, link-local or multicast range: pods need a routable one", s)
		}
		*dst = p.Masked()
		return nil
	}
}

// noEffect checks a value's form and warns that it changes nothing.
func (r *confReader) noEffect(place string, set func(string) error) func(string) error {
	return func(raw string) error {
		r.warn(place, "has no effect in Kubernetes: the controller-manager gives each node its pod CIDR")
		return set(raw)
	}
}
