package subnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// The setters below read one value, given as JSON text, and say in an error what is wrong with it and what to write.

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

// network reads a range, masks host bits as flannel does and refuses what can hold no pods. The whole address space is left to
// families: k3s writes it for a family that is off.
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
