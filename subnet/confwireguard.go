package subnet

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// portWireGuard is the port of ListenPort when the file says none; ListenPortV6's is the next one.
const portWireGuard = 51820

// Port is where the tunnels of a family arrive: in the modes with one device both families' do at the same.
func (w WireGuardConf) Port(f Family) uint16 {
	if w.Mode == ModeSeparate || w.Mode == "" {
		return w.Ports[f]
	}
	return w.Ports[IPv4]
}

// modes lists the values of Mode.
func modes() []string { return []string{ModeSeparate, ModeAuto, ModeIPv4, ModeIPv6} }

// wireGuardKeys lists what only wireguard has.
func wireGuardKeys(w *WireGuardConf) []confKey {
	return []confKey{
		{"ListenPort", orUnset(number(1, 65535, &w.Ports[IPv4]))},
		{"ListenPortV6", orUnset(number(1, 65535, &w.Ports[IPv6]))},
		{"PSK", preShared(&w.PSK)},
		{"PersistentKeepaliveInterval", seconds(&w.Keepalive)},
		{"Mode", wireGuardMode(&w.Mode)},
	}
}

// preShared reads the secret that all nodes share. No error of it shows the value, not even a part.
func preShared(dst *Secret) func(string) error {
	return func(raw string) error {
		var s string
		if text(&s)(raw) != nil {
			return errors.New("is not text: write the line that wg genpsk prints, in double quotes")
		}
		if s == "" {
			*dst = Secret{}
			return nil
		}
		b, err := base64.StdEncoding.Strict().DecodeString(s)
		if err != nil || len(b) != len(Secret{}) {
			return errors.New("is not 32 bytes in base64: write the line that wg genpsk prints")
		}
		if Secret(b).IsZero() {
			return errors.New("is all zero, which WireGuard takes for none: write the line that wg genpsk prints, or leave it out")
		}
		*dst = Secret(b)
		return nil
	}
}

// seconds reads an interval of WireGuard, which has 16 bits for it.
func seconds(dst *time.Duration) func(string) error {
	return func(raw string) error {
		var n int
		if err := number(0, 65535, &n)(raw); err != nil {
			return fmt.Errorf("%w (seconds; 0 is off)", err)
		}
		*dst = time.Duration(n) * time.Second
		return nil
	}
}

func wireGuardMode(dst *string) func(string) error {
	return func(raw string) error {
		var s string
		if err := text(&s)(raw); err != nil {
			return err
		}
		if s == "" {
			s = ModeSeparate
		}
		if !slices.Contains(modes(), s) {
			hint := ""
			if slices.Contains(modes(), strings.ToLower(s)) {
				hint = ", in small letters"
			}
			return fmt.Errorf("%q is no mode: use one of %q%s", shorten(s), modes(), hint)
		}
		*dst = s
		return nil
	}
}

// wireGuard settles what wireguard's keys come to together, and with the families that are on.
func (r *confReader) wireGuard(conf *NetConf) {
	w := &conf.Backend.WireGuard
	if conf.Backend.Type != WireGuard {
		return
	}
	w.Ports[IPv4] = cmp.Or(w.Ports[IPv4], portWireGuard)
	if w.Mode != ModeSeparate {
		if w.Ports[IPv6] != 0 {
			r.warn("Backend.ListenPortV6", fmt.Sprintf("has no effect in Mode %q, which has one device: it listens on ListenPort", w.Mode))
		}
		w.Ports[IPv6] = 0
	} else if w.Ports[IPv6] = cmp.Or(w.Ports[IPv6], portWireGuard+1); w.Ports[IPv6] == w.Ports[IPv4] && conf.Enabled == [2]bool{true, true} {
		r.fail("Backend.ListenPortV6", fmt.Sprintf("%d is also ListenPort: the two devices of Mode %q need a port each", w.Ports[IPv6], ModeSeparate))
	}
	for f, mode := range [2]string{ModeIPv4, ModeIPv6} {
		if w.Mode == mode && !conf.Enabled[f] {
			_, enable := networkKeys(Family(f))
			r.fail("Backend.Mode", fmt.Sprintf("%q sends everything over %v, and %s is false: use %q or %q", mode, Family(f), enable, ModeSeparate, ModeAuto))
		}
	}
}
