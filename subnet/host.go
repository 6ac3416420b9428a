package subnet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// HostName is the name of the host's file; it lies beside subnet.env, in /run/flannel, and ends with the boot.
const HostName = "weft-host.json"

// maxHost bounds that file; ours has 20 bytes.
const maxHost = 4 << 10

// Host is the CNI plugin's word to the agent about the host. The plugin runs among the host's programs; the agent is in a
// container with programs of its own and cannot see them.
type Host struct {
	// Rules is by what the host's plugins make rules: "iptables" or "nftables"; empty when not known.
	Rules string `json:"rules"`
}

// Render gives the bytes of the file.
func (h Host) Render() ([]byte, error) {
	b, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("render the host's file: %w", err)
	}
	return append(b, '\n'), nil
}

// ParseHost reads the file. Unknown keys are let pass, because plugin and agent may differ in age.
func ParseHost(b []byte) (Host, error) {
	var h Host
	dec := json.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&h); err != nil {
		return Host{}, fmt.Errorf("parse the host's file: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Host{}, errors.New("parse the host's file: more follows after the object")
	}
	if h.Rules != "" && h.Rules != "iptables" && h.Rules != "nftables" {
		return Host{}, fmt.Errorf("parse the host's file: rules are by %q, want iptables or nftables", h.Rules)
	}
	return h, nil
}

// LoadHost reads the file beside subnet.env. Without one it is the zero Host.
func LoadHost(subnetFile string) (Host, error) {
	f, err := os.Open(filepath.Join(filepath.Dir(subnetFile), HostName))
	if errors.Is(err, fs.ErrNotExist) {
		return Host{}, nil
	}
	if err != nil {
		return Host{}, fmt.Errorf("read the host's file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxHost))
	if err != nil {
		return Host{}, fmt.Errorf("read the host's file: %w", err)
	}
	return ParseHost(b)
}
