package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// Foreign names the CNI configurations that a runtime takes before ours: it uses the first by name. Files that no runtime
// loads do not count, nor does a meta-plugin that refers to us.
func Foreign(dir string) ([]string, error) {
	before, err := earlier(dir)
	var out []string
	for _, f := range before {
		if loads(f.text) && !refersToUs(f.text) && !leadsTo(f.text, networkIn(dir)) {
			out = append(out, f.name)
		}
	}
	return out, err
}

// Odd says what else is wrong with the configurations before ours, a sentence each: those that no runtime can load, and those of
// this very network that lack a link of the chain, as an early flannel has left them.
func Odd(dir string) ([]string, error) {
	before, err := earlier(dir)
	var out []string
	for _, f := range before {
		switch {
		case f.err != nil:
			out = append(out, fmt.Sprintf("%s cannot be read here: %v: a runtime may take it before %s, or stop at it (containerd does) and have no network at all; mend or remove it",
				f.name, f.err, ConflistName))
		case !loads(f.text):
			out = append(out, f.name+" is no CNI configuration: a runtime may stop at it (containerd does) and have no network at all; mend or remove it")
		case lacksPorts(f.text):
			out = append(out, f.name+" leads to this network and has no portmap, so that hostPorts are not served: the runtime takes it and not "+ConflistName+"; remove it")
		}
	}
	return out, err
}

// configuration is a file of the CNI configuration directory.
type configuration struct {
	name string
	text []byte
	err  error // why it has no text
}

// earlier reads the files that a runtime looks at before ours.
func earlier(dir string) ([]configuration, error) {
	entries, err := os.ReadDir(dir) // sorted by name, as runtimes sort
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list CNI configurations: %w", err)
	}
	var out []configuration
	for _, e := range entries {
		if e.Name() >= ConflistName {
			break
		}
		if !e.Type().IsRegular() && e.Type() != fs.ModeSymlink || !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		data, err := os.ReadFile(path)
		if _, there := os.Lstat(path); err != nil && there != nil {
			continue // it is gone by now
		}
		out = append(out, configuration{e.Name(), data, err})
	}
	return out, nil
}

// lacksPorts reports whether a configuration has our plugin as its first, and none that serves hostPorts.
func lacksPorts(data []byte) bool {
	var c struct {
		Type    string   `json:"type"`
		Plugins []plugin `json:"plugins"`
	}
	if json.Unmarshal(data, &c) != nil {
		return false
	}
	serves := slices.ContainsFunc(c.Plugins, func(p plugin) bool { return p.Type == "portmap" })
	return !serves && (c.Type == Shim || len(c.Plugins) > 0 && c.Plugins[0].Type == Shim)
}

// loads reports whether a runtime would take the text for a configuration.
func loads(data []byte) bool {
	var c struct {
		Type    string            `json:"type"`
		Plugins []json.RawMessage `json:"plugins"`
	}
	return json.Unmarshal(data, &c) == nil && (c.Type != "" || len(c.Plugins) > 0)
}

// refersToUs looks for our plugin or our file anywhere in a configuration.
func refersToUs(data []byte) bool {
	var v any
	return json.Unmarshal(data, &v) == nil && mentions(v, "")
}

func mentions(v any, key string) bool {
	switch v := v.(type) {
	case string:
		return key == "type" && v == Shim || strings.HasSuffix(v, ConflistName)
	case []any:
		return slices.ContainsFunc(v, func(e any) bool { return mentions(e, key) })
	case map[string]any:
		for k, e := range v {
			if mentions(e, k) {
				return true
			}
		}
	}
	return false
}

// leadsTo reports whether a configuration is of Multus and names a network as the one of the cluster.
func leadsTo(data []byte, network string) bool {
	var c struct {
		ClusterNetwork string `json:"clusterNetwork"`
	}
	return network != "" && json.Unmarshal(data, &c) == nil && c.ClusterNetwork == network
}

// networkIn is the name of our network, "" while there is no conflist of ours.
func networkIn(dir string) string {
	var c struct {
		Name string `json:"name"`
	}
	data, err := os.ReadFile(filepath.Join(dir, ConflistName))
	if err != nil || json.Unmarshal(data, &c) != nil {
		return ""
	}
	return c.Name
}

// RemoveStale removes our conflist when subnet.env is not there, which is so from a boot until the agent is ready: /run is
// empty, and the conflist is the promise of another boot. It reports whether there was one.
func RemoveStale(dir, subnetFile string) (bool, error) {
	if _, err := os.Stat(subnetFile); err == nil {
		return false, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look for subnet.env: %w", err)
	}
	return removeConflist(dir)
}

// removeConflist removes the conflist if it is one of ours or of flannel's.
func removeConflist(dir string) (bool, error) {
	path := filepath.Join(dir, ConflistName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && loads(data) && !refersToUs(data) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("remove the conflist: %w", subnet.Cure(path, err))
	}
	if err := os.Remove(path); err != nil {
		return false, fmt.Errorf("remove the conflist: %w", subnet.Cure(path, err))
	}
	return true, nil
}
