package subnet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// unknown warns of a key that does nothing. It never shows the value, which may be a secret in the wrong place.
func (r *confReader) unknown(prefix, name string, keys []confKey) {
	if owners := ownersOf(name); prefix != "" && len(owners) > 0 {
		r.warn(prefix+shorten(name), "has no effect with this Type: it is a key of "+strings.Join(owners, " and "))
		return
	}
	text := "is not a known key and has no effect"
	if near := nearestKey(name, keys); near != "" {
		text += fmt.Sprintf(": did you mean %q?", near)
	} else if prefix == "" && len(ownersOf(name)) > 0 {
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
	if strings.TrimSpace(text) == "" {
		return nil, errors.New(`is empty: write at least {"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}`)
	}
	var probe any
	if err := json.Unmarshal([]byte(text), &probe); err != nil {
		return nil, fmt.Errorf("%w%s%s", err, at(text, err), hint(err))
	}
	dec := json.NewDecoder(strings.NewReader(text))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		text = strings.TrimSpace(text)
		if strings.HasPrefix(text, "[") && text != "[]" {
			text = "[...]" // a PSK may be in it
		}
		return nil, fmt.Errorf("%s is not a JSON object: write { \"Key\": value, ... }", shorten(text))
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

// hint is the cure for the mistakes that people make most when they write JSON; empty for others.
func hint(err error) string {
	for _, mistake := range []struct{ said, cure string }{
		{"unexpected end", "is a closing bracket or quote missing?"},
		{`character '\''`, "JSON has double quotes"},
		{"character '/' looking", "JSON has no comments"},
		{"character '#' looking", "JSON has no comments"},
		{"'}' looking for beginning of object key", "is there a comma too many before it?"},
		{"']' looking for beginning of value", "is there a comma too many before it?"},
		{"looking for beginning of value", `write JSON, { "Key": value, ... }`},
	} {
		if strings.Contains(err.Error(), mistake.said) {
			return ": " + mistake.cure
		}
	}
	return ""
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
