package wgkey

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// ConfName is the name of the file of Conf.
const ConfName = "wgconf"

// Conf keeps what net-conf.json said of WireGuard for the time when it says it no more, and peers still speak by it: the devices
// show it as well, but not after a reboot. The pre-shared key is in it, so that root alone may read it.
type Conf struct {
	Path   string
	Writer subnet.Writer
	last   subnet.WireGuardConf // that is in the file
}

// confText is the file.
type confText struct {
	Ports     [2]uint16
	PSK       string        `json:",omitempty"` // base64
	Keepalive time.Duration `json:",omitempty"`
	Mode      string
}

// ConfIn is the file in a directory that outlives the boot.
func ConfIn(state string, w subnet.Writer) Conf {
	return Conf{Path: filepath.Join(state, ConfName), Writer: w}
}

// Keep writes what is in force, if that is news.
func (c *Conf) Keep(conf subnet.WireGuardConf) error {
	if conf == c.last {
		return nil
	}
	if was, ok, err := c.Load(); err == nil && ok && was == conf {
		return nil
	}
	text := confText{Ports: conf.Ports, Keepalive: conf.Keepalive, Mode: conf.Mode}
	if !conf.PSK.IsZero() {
		text.PSK = base64.StdEncoding.EncodeToString(conf.PSK[:])
	}
	data, err := json.Marshal(text)
	if err != nil {
		return err
	}
	if err := c.Writer.WriteFile(c.Path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("keep WireGuard's configuration: %w", err)
	}
	c.last = conf
	return nil
}

// Load reads the file; false when there is none, or none that can be used.
func (c *Conf) Load() (subnet.WireGuardConf, bool, error) {
	data, err := os.ReadFile(c.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return subnet.WireGuardConf{}, false, nil
	}
	if err != nil {
		return subnet.WireGuardConf{}, false, fmt.Errorf("read WireGuard's configuration: %w", subnet.Cure(c.Path, err))
	}
	var text confText
	if json.Unmarshal(data, &text) != nil || text.Ports[subnet.IPv4] == 0 {
		return subnet.WireGuardConf{}, false, nil // what a crash has left
	}
	conf := subnet.WireGuardConf{Ports: text.Ports, Keepalive: text.Keepalive, Mode: text.Mode}
	if text.PSK != "" {
		raw, err := base64.StdEncoding.DecodeString(text.PSK)
		if err != nil || len(raw) != len(conf.PSK) {
			return subnet.WireGuardConf{}, false, nil
		}
		conf.PSK = subnet.Secret(raw)
	}
	c.last = conf
	return conf, true, nil
}
