package gate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/weft-cni/weft/subnet/attach"
)

// Run reads notes and answers questions until ctx ends.
func (g *Gate) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	for _, task := range []struct {
		what string
		do   func(context.Context) error
	}{{"read notes", g.read}, {"answer the CNI plugin", g.listen}, {"let addresses go", g.clean}, {"end the connections of earlier pods", g.fresh.run}} {
		tasks.Go(func() {
			for said := ""; ctx.Err() == nil; {
				err := task.do(ctx)
				if err != nil && ctx.Err() == nil && err.Error() != said {
					said = err.Error()
					g.log.Warn("gate: "+task.what, "err", err)
				}
				pause(ctx)
			}
		})
	}
	tasks.Wait()
	return nil
}

// Remove takes the folder of notes, the socket and the table away: nobody holds pods or notes them any more.
func (g *Gate) Remove(ctx context.Context) error {
	err := errors.Join(g.Shut(ctx, false), os.RemoveAll(g.notes.Dir))
	if gone := os.Remove(g.socket); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// listen answers questions.
func (g *Gate) listen(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(g.socket), 0o755); err != nil {
		return fmt.Errorf("make the folder of the socket: %w", err)
	}
	// One that is there is of an agent that was killed: the lock of the node has let only us in.
	if err := os.Remove(g.socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove an old socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: g.socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer l.Close()
	if err := os.Chmod(g.socket, 0o600); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var questions sync.WaitGroup
	defer questions.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		questions.Go(func() {
			if err := attach.Serve(ctx, c, g.ask); err != nil {
				g.log.Debug("gate: a question", "err", err)
			}
		})
	}
}

// read keeps what is known equal to the notes on disk.
func (g *Gate) read(ctx context.Context) error {
	if err := g.notes.Make(); err != nil {
		return err
	}
	w, err := watchFolder(g.notes.Dir)
	if err != nil {
		return err
	}
	defer w.Close()
	defer context.AfterFunc(ctx, func() { _ = w.Close() })()
	buf, disk := make([]byte, 64<<10), &folder{notes: g.notes, log: g.log}
	for {
		if err := g.scan(disk); err != nil {
			return err
		}
		if _, err := w.Read(buf); err != nil {
			return fmt.Errorf("watch the notes: %w", err)
		}
		if _, err := os.Stat(g.notes.Dir); err != nil {
			return fmt.Errorf("watch the notes: %w", err) // somebody removed the folder: make it anew
		}
	}
}

// scan takes over the notes that are on disk.
func (g *Gate) scan(disk *folder) error {
	g.reading.Lock()
	defer g.reading.Unlock()
	found, err := disk.look()
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	news := false
	for name, n := range found {
		if old, there := g.known[name]; !there || !old.Equal(n) {
			g.learn(n)
			news = true
		}
	}
	for name := range g.known {
		if _, there := found[name]; !there && len(g.waiting[name]) == 0 {
			delete(g.known, name)
			delete(g.free, name)
			delete(g.judged, name)
			g.fresh.drop(name)
			news = true
		}
	}
	select {
	case <-g.ready:
	default:
		close(g.ready)
		news = true
	}
	if news {
		g.poke()
	}
	return nil
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(retry):
	}
}
