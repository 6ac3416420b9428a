package subnet

import (
	"encoding/base64"
	"fmt"
)

// Key is a WireGuard public key. The zero value means "none".
type Key [32]byte

// ParseKey reads a key in base64, as wg(8) prints it.
func ParseKey(s string) (Key, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != len(Key{}) || Key(b).String() != s { // base64 passes over line ends
		return Key{}, fmt.Errorf("parse key %.60q: want 32 bytes in base64, as wg genkey prints them", s)
	}
	return Key(b), nil
}

// IsZero reports whether no key is set.
func (k Key) IsZero() bool { return k == Key{} }

// String is the key in base64.
func (k Key) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// MarshalText is String, and empty for the zero value.
func (k Key) MarshalText() ([]byte, error) {
	if k.IsZero() {
		return nil, nil
	}
	return []byte(k.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (k *Key) UnmarshalText(text []byte) (err error) {
	*k = Key{}
	if len(text) > 0 {
		*k, err = ParseKey(string(text))
	}
	return err
}

// Secret is a private or a pre-shared key. It is comparable, and no log, error or dump shows it: String hides it.
type Secret [32]byte

// IsZero reports whether no secret is set.
func (s Secret) IsZero() bool { return s == Secret{} }

// String tells only whether there is one.
func (s Secret) String() string {
	if s.IsZero() {
		return "(none)"
	}
	return "(hidden)"
}

// GoString is String: %#v must not show it either.
func (s Secret) GoString() string { return s.String() }

// Format is String for every verb: %x and %d would print an array's bytes.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// MarshalText is String: a secret has no place in a file of ours but its own.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
