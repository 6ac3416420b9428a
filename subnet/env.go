package subnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Env is subnet.env, the hand-over from the daemon to the CNI plugin.
type Env struct {
	Networks     [2]netip.Prefix // masked; invalid when the family is off
	Subnets      [2]netip.Prefix // own pod CIDR, masked; the file holds its first address with the same length
	MTU          int             // of the pods
	IPMasq       bool            // the daemon masquerades, so the bridge must not
	MoreNetworks []netip.Prefix  // what comma lists hold beyond the first of each family, in order, without duplicates
}

// envKeys gives the keys of a family in the order in which they are written.
func envKeys(f Family) (network, subnet string) {
	return [2]string{"FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"}[f], [2]string{"FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"}[f]
}

const (
	envMTU    = "FLANNEL_MTU"
	envIPMasq = "FLANNEL_IPMASQ"
)

// Render is the file byte for byte as flannel writes it. A family without a subnet has no lines.
func (e Env) Render() []byte {
	var b strings.Builder
	for _, f := range Families() {
		if !e.Networks[f].IsValid() || !e.Subnets[f].IsValid() {
			continue
		}
		network, subnet := envKeys(f)
		gateway := netip.PrefixFrom(e.Subnets[f].Masked().Addr().Next(), e.Subnets[f].Bits())
		fmt.Fprintf(&b, "%s=%s\n%s=%s\n", network, e.Networks[f].Masked(), subnet, gateway)
	}
	fmt.Fprintf(&b, "%s=%d\n%s=%t\n", envMTU, e.MTU, envIPMasq, e.IPMasq)
	return []byte(b.String())
}

// MissingKeysError tells that subnet.env lacks keys without which no pod can be set up.
type MissingKeysError struct{ Keys []string }

// Error lists the keys in the order of the file.
func (e *MissingKeysError) Error() string { return "is missing " + strings.Join(e.Keys, ", ") }

// LoadEnv reads subnet.env. Its texts are flannel's, which people search for.
func LoadEnv(path string) (Env, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Env{}, fmt.Errorf("failed to load flannel 'subnet.env' file: %w", err)
	}
	env, err := ParseEnv(data)
	var missing *MissingKeysError
	if errors.As(err, &missing) {
		return env, fmt.Errorf("failed to load flannel 'subnet.env' file: %s %w. Check the flannel pod log for this node.", path, err)
	}
	if err != nil {
		return env, fmt.Errorf("failed to load flannel 'subnet.env' file: %s: %w", path, err)
	}
	return env, nil
}

// ParseEnv reads the contents of subnet.env, also when a person or another program has edited it: blank lines,
// comments, quotes, CRLF, blanks around values, "export" and comma lists are all right, unknown keys do not matter.
// It returns all problems in one error; when keys are missing and nothing else is wrong, that is a *MissingKeysError.
func ParseEnv(data []byte) (Env, error) {
	var env Env
	var errs []error
	has := map[string]bool{}
	for i, line := range strings.Split(strings.TrimPrefix(string(data), "\xef\xbb\xbf"), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		key = strings.TrimSpace(key)
		if !ok {
			errs = append(errs, fmt.Errorf("line %d: %q has no '=': write KEY=value", i+1, shorten(line)))
			continue
		}
		known, err := env.set(key, unquote(value))
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: %s: %w", i+1, key, err))
		}
		has[key] = known || has[key]
	}
	if len(errs) > 0 {
		return env, errors.Join(errs...)
	}
	if missing := missingKeys(has); len(missing) > 0 {
		return env, &MissingKeysError{Keys: missing}
	}
	return env, nil
}

// set stores one value and reports whether it says anything; an empty value is the same as no line.
func (e *Env) set(key, value string) (bool, error) {
	if value == "" {
		return false, nil
	}
	for _, f := range Families() {
		network, subnet := envKeys(f)
		switch key {
		case network:
			list, err := prefixes(f, value)
			if len(list) > 0 {
				e.Networks[f] = list[0]
				e.MoreNetworks = append(e.MoreNetworks, list[1:]...)
			}
			return len(list) > 0, err
		case subnet:
			list, err := prefixes(f, value)
			if len(list) > 1 {
				return true, fmt.Errorf("%q holds %d subnets: a node has one", shorten(value), len(list))
			}
			if len(list) == 1 {
				e.Subnets[f] = list[0]
			}
			return len(list) > 0, err
		}
	}
	switch key {
	case envMTU:
		n, err := strconv.ParseUint(value, 10, 16)
		if err != nil {
			return true, fmt.Errorf("%q is not an MTU: want 0 to 65535", shorten(value))
		}
		e.MTU = int(n)
		return true, nil
	case envIPMasq:
		for _, word := range []string{"true", "false"} {
			if value != word && strings.HasPrefix(word, value) { // of all values, the one whose beginning could be taken for a value
				return true, fmt.Errorf("%q is cut short: want true or false", value)
			}
		}
		e.IPMasq = value == "true"
		return true, nil
	}
	return false, nil
}

// prefixes reads a comma list of CIDRs of one family, masked and without duplicates.
func prefixes(f Family, value string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for part := range strings.SplitSeq(value, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		p, err := netip.ParsePrefix(part)
		if err != nil || FamilyOf(p.Addr()) != f || p.Addr().Is4In6() {
			return list, fmt.Errorf("%q is not an %v CIDR", shorten(part), f)
		}
		if p = p.Masked(); !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	return list, nil
}

// unquote takes blanks, a trailing comment and one pair of quotes off a value.
func unquote(value string) string {
	value = strings.TrimSpace(value)
	if value != "" && (value[0] == '"' || value[0] == '\'') {
		if end := strings.IndexByte(value[1:], value[0]); end >= 0 {
			return strings.TrimSpace(value[1 : end+1])
		}
	}
	if i := strings.Index(value, " #"); i >= 0 {
		value = strings.TrimSpace(value[:i])
	}
	return value
}

// missingKeys lists what no pod can do without: a network and a subnet of any family, the MTU and the masquerade flag.
func missingKeys(has map[string]bool) []string {
	network, subnet := envKeys(IPv4)
	network6, subnet6 := envKeys(IPv6)
	var missing []string
	if !has[network] && !has[network6] {
		missing = append(missing, network, network6)
	}
	if !has[subnet] && !has[subnet6] {
		missing = append(missing, subnet, subnet6)
	}
	for _, key := range []string{envMTU, envIPMasq} {
		if !has[key] {
			missing = append(missing, key)
		}
	}
	return missing
}
