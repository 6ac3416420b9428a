package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/weft-cni/weft/subnet"
)

// confFile follows net-conf.json: a wrong file is reported and the last good one stays in force, a mended one is taken
// within a second. Reading a file of a kilobyte each second is cheaper than following a ConfigMap's symlinks by inotify.
type confFile struct {
	path    string
	log     *slog.Logger
	changed func()

	raw     []byte // of the last read; only the loop touches it
	problem error  // with raw
	good    atomic.Pointer[subnet.NetConf]
}

// load gives the config in force, or nil.
func (c *confFile) load() *subnet.NetConf { return c.good.Load() }

// beside is what helps against a file that cannot be read: in a ConfigMap it is a key, and keys are misspelt.
func (c *confFile) beside(err error) string {
	dir, name := filepath.Split(c.path)
	if !errors.Is(err, fs.ErrNotExist) {
		return "; --net-config-path names the file"
	}
	var names []string
	entries, _ := os.ReadDir(dir) // without it there is nothing to say of it
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "..") { // the kubelet's own
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 {
		return "; is the ConfigMap kube-flannel-cfg mounted at " + dir + "? --net-config-path names another place"
	}
	return fmt.Sprintf("; %s holds %s: the ConfigMap needs a key %s", dir, strings.Join(names[:min(5, len(names))], ", "), name)
}

func (c *confFile) sync(context.Context) error {
	raw, err := os.ReadFile(c.path)
	if err != nil {
		return fmt.Errorf("read the network configuration: %w%s", err, c.beside(err))
	}
	if c.raw != nil && bytes.Equal(raw, c.raw) {
		return c.problem
	}
	conf, warnings, err := subnet.ParseNetConf(raw)
	c.raw, c.problem = raw, nil
	if err != nil {
		c.problem = fmt.Errorf("%s: %w", c.path, err)
		return c.problem
	}
	for _, w := range warnings {
		c.log.Warn("net-conf.json", "warning", w)
	}
	if old := c.good.Load(); old == nil || *old != conf {
		c.good.Store(&conf)
		c.log.Info("network configuration", "network", networks(conf), "backend", fmt.Sprintf("%+v", conf.Backend))
		c.changed()
	}
	return nil
}
