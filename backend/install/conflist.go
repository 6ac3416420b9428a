package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// Builtin is the conflist template in force when the ConfigMap has none: the chain of flannel plus bandwidth.
const Builtin = `{
  "name": "cbr0",
  "cniVersion": "1.0.0",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {
        "hairpinMode": true,
        "isDefaultGateway": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    },
    {
      "type": "bandwidth",
      "capabilities": {
        "bandwidth": true
      }
    }
  ]
}
`

// oldest is the lowest protocol version worth listing; conflists came with 0.3.0.
const oldest = "0.3.1"

// networkName is what libcni and host-local, which makes a directory of it, accept.
var networkName = regexp.MustCompile(`^[a-zA-Z0-9][\w.-]*$`)

// plugin is what the template says of one link of the chain, as far as we look.
type plugin struct {
	Type     string   `json:"type"`
	Delegate delegate `json:"delegate"`
	IPAM     struct {
		Type string `json:"type"`
	} `json:"ipam"`
}

// programs lists the files that the runtime and the plugins will start.
func (p plugin) programs() []string {
	if p.Type != Shim {
		return slices.DeleteFunc([]string{p.Type, p.IPAM.Type}, func(s string) bool { return s == "" })
	}
	return []string{Shim, p.Delegate.kind(), defaultTo(p.IPAM.Type, "host-local")}
}

func defaultTo(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// Conflist renders a template (cni-conf.json; nil means Builtin) into the file that the runtime gets. It adds cniVersions, the
// protocol versions that every program of the chain in directory bin reports: with the list runtimes that know 1.1.0 use it,
// STATUS included, and older ones load the file by its cniVersion. All problems come back joined; C-12: a program that is
// missing is one, since a runtime that reads the file would fail each pod.
func Conflist(ctx context.Context, template []byte, bin string) ([]byte, error) {
	if template == nil {
		template = []byte(Builtin)
	}
	template = bytes.TrimPrefix(template, []byte("\xef\xbb\xbf")) // some editors put a byte order mark
	if len(bytes.TrimSpace(template)) == 0 {
		return nil, errors.New("parse cni-conf.json: it is empty: take the key out of the ConfigMap to have the built-in one")
	}
	var list map[string]json.RawMessage
	if err := json.Unmarshal(template, &list); err != nil {
		return nil, fmt.Errorf("parse cni-conf.json: %w", err)
	}
	chain, err := parseChain(list)
	if err != nil {
		return nil, fmt.Errorf("check cni-conf.json: %w", err)
	}
	common, err := commonVersions(ctx, chain, bin)
	if err != nil {
		return nil, err
	}
	if err := addVersions(list, common); err != nil {
		return nil, fmt.Errorf("check cni-conf.json: %w", err)
	}
	out, err := marshal(list)
	if err != nil {
		return nil, fmt.Errorf("render the conflist: %w", err)
	}
	return out, nil
}

// parseChain checks name and plugins of a template.
func parseChain(list map[string]json.RawMessage) ([]plugin, error) {
	var errs []error
	var name string
	switch err := json.Unmarshal(list["name"], &name); {
	case err != nil:
		errs = append(errs, errors.New(`"name" is missing or no string: flannel's is "cbr0"`))
	case !networkName.MatchString(name):
		errs = append(errs, fmt.Errorf(`"name": %q: want letters, digits, ".", "_" and "-"`, name))
	}
	var chain []plugin
	if err := json.Unmarshal(list["plugins"], &chain); err != nil || len(chain) == 0 {
		return nil, errors.Join(append(errs, errors.New(`"plugins" is missing or no list of objects`))...)
	}
	for i, p := range chain {
		for _, prog := range p.programs() {
			if strings.ContainsRune(prog, '/') {
				errs = append(errs, fmt.Errorf(`"plugins"[%d]: %q: want the name of a program, not a path`, i, prog))
			}
		}
		if err := p.Delegate.check(); p.Type == Shim && err != nil {
			errs = append(errs, fmt.Errorf(`"plugins"[%d]: %w`, i, err))
		}
		if p.Type == "" {
			errs = append(errs, fmt.Errorf(`"plugins"[%d] has no "type"`, i))
		}
	}
	if !slices.ContainsFunc(chain, func(p plugin) bool { return p.Type == Shim }) {
		errs = append(errs, errors.New(`"plugins" has none of "type": "flannel", so that pods would not join this network`))
	}
	return chain, errors.Join(errs...)
}

// commonVersions intersects what the programs of a chain report.
func commonVersions(ctx context.Context, chain []plugin, bin string) ([]string, error) {
	var common, asked []string
	var errs []error
	for _, p := range chain {
		for _, prog := range p.programs() {
			path := filepath.Join(bin, prog)
			if slices.Contains(asked, prog) {
				continue
			}
			asked = append(asked, prog)
			if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("CNI plugin %s is not in %s", prog, bin))
				continue
			}
			versions, err := askProtocols(ctx, path)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if common == nil {
				common = versions
			}
			common = slices.DeleteFunc(slices.Clone(common), func(v string) bool { return !slices.Contains(versions, v) })
		}
	}
	return common, errors.Join(errs...)
}

// addVersions sets cniVersion where the template has none, and cniVersions to what template and programs agree on.
func addVersions(list map[string]json.RawMessage, common []string) error {
	version := "1.0.0"
	if raw, ok := list["cniVersion"]; ok {
		if err := json.Unmarshal(raw, &version); err != nil {
			return fmt.Errorf(`"cniVersion": %w`, err)
		}
	}
	if !slices.Contains(common, version) {
		return fmt.Errorf(`"cniVersion": %q: the plugins of the chain have only these in common: %s`, version, strings.Join(common, ", "))
	}
	var asked []string
	if raw, ok := list["cniVersions"]; ok {
		if err := json.Unmarshal(raw, &asked); err != nil {
			return fmt.Errorf(`"cniVersions": %w`, err)
		}
	}
	versions := slices.DeleteFunc(slices.Clone(common), func(v string) bool {
		return compareVersions(v, oldest) < 0 || asked != nil && !slices.Contains(asked, v)
	})
	list["cniVersion"], _ = json.Marshal(version)
	list["cniVersions"], _ = json.Marshal(versions)
	return nil
}

// WriteConflist puts a rendered conflist in place and reports whether that changed anything.
func WriteConflist(w subnet.Writer, dir string, data []byte) (bool, error) {
	path := filepath.Join(dir, ConflistName)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return false, nil
	}
	if err := write(w, path, data, 0o644); err != nil {
		return false, err
	}
	return true, nil
}
