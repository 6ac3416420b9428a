package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/subnet"
)

// apiPatience is how long a fresh start waits for the API server before it brings up what the disk remembers.
const apiPatience = 3 * time.Second

// viewState says how far a snapshot can be trusted.
type viewState struct {
	known bool // there is one
	stale bool // it comes from the disk: nothing may be removed because it is not in it
}

// view gives the newest snapshot: the API server's, and until that has answered the last good one from the disk, so
// that a node which boots while the API server is away still has a network.
type view struct {
	source  subnet.Source
	file    string
	files   subnet.Writer
	log     *slog.Logger
	started time.Time
	kept    subnet.Snapshot // what the disk holds; zero when nothing can be used
	once    sync.Once       // says that kept is in use
	refused sync.Once       // says that it is not, and why
	news    atomic.Bool     // the source has something that the disk may not have
	stamp   install.Stamp   // of the file as keep left it; only the cache loop touches it
}

// newView reads the disk; whatever is wrong with the file costs the cold start and nothing else.
func newView(file, node string, log *slog.Logger) *view {
	v := &view{file: file, log: log, started: time.Now()}
	v.news.Store(true)
	data, err := os.ReadFile(v.file)
	if errors.Is(err, fs.ErrNotExist) {
		return v
	}
	var kept subnet.Snapshot
	if err == nil {
		kept, err = subnet.ParseCache(data)
	}
	if err == nil {
		err = subnet.CheckCache(kept, node, "")
	}
	if err != nil {
		log.Warn("state of an earlier run is not used", "file", v.file, "err", err)
		return v
	}
	v.kept = kept
	return v
}

// now is the snapshot to work from.
func (v *view) now() (subnet.Snapshot, viewState) {
	s, ok := v.source.Snapshot()
	if ok {
		return s, viewState{known: true}
	}
	if time.Since(v.started) < apiPatience || !v.kept.Self.Exists {
		return subnet.Snapshot{}, viewState{}
	}
	if err := v.refuted(s); err != nil {
		v.refused.Do(func() { v.log.Warn("state of an earlier run is not used", "file", v.file, "err", err) })
		return subnet.Snapshot{}, viewState{}
	}
	v.once.Do(func() {
		v.log.Warn("API server is away: using the state of the last run, removing nothing", "peers", len(v.kept.Peers))
	})
	return v.kept, viewState{known: true, stale: true}
}

// refuted tells why the kept state is out of date, as far as an API server says that gives the own Node, or the cluster's
// name, and not yet the list of Nodes.
func (v *view) refuted(heard subnet.Snapshot) error {
	if err := subnet.CheckCache(v.kept, v.kept.Self.Name, heard.ClusterID); err != nil {
		return err
	}
	if heard.Self.Exists && heard.Self.PodCIDRs != v.kept.Self.PodCIDRs {
		return fmt.Errorf("the node has the pod CIDRs %v now, and %v in the file", heard.Self.PodCIDRs, v.kept.Self.PodCIDRs)
	}
	return nil
}

// keep writes the API server's snapshot to disk when it has changed, or when somebody touched the file. Rendering fifteen
// thousand peers takes long, so a turn without news is one stat.
func (v *view) keep(context.Context) error {
	if news := v.news.Swap(false); !news && v.stamp.Stands(v.file) {
		return nil
	}
	s, ok := v.source.Snapshot()
	if !ok || !s.Self.Exists {
		v.news.Store(true)
		return nil
	}
	if err := v.write(s); err != nil {
		v.news.Store(true)
		return fmt.Errorf("keep the snapshot: %w", err)
	}
	v.stamp = install.StampOf(v.file)
	return nil
}

func (v *view) write(s subnet.Snapshot) error {
	data, err := subnet.RenderCache(s)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(v.file); err == nil && bytes.Equal(data, have) {
		return nil
	}
	return v.files.WriteFile(v.file, data, 0o600)
}

// changed says that the source has a newer snapshot.
func (v *view) changed() { v.news.Store(true) }
