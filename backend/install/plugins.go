package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/weft-cni/weft/subnet"
)

// ErrNoSource says that there are no plugins to install from: flanneld runs outside its image, and whoever started it looks
// after the plugins.
var ErrNoSource = errors.New("no CNI plugins to install from")

// Change is what happened to one plugin, or why nothing did.
type Change struct {
	Name string
	Why  string
}

// String is "bridge (was missing)".
func (c Change) String() string { return c.Name + " (" + c.Why + ")" }

// Report is the outcome of one pass over the plugins. Plugins that were right already are in neither list.
type Report struct {
	Installed []Change
	Kept      []Change // the host's own, left in place
}

// Keeper keeps the plugins of a directory as they should be. A pass costs one stat per plugin while nothing changed, so that
// it can run every second: packages of the host replace or remove plugins at will.
type Keeper struct {
	Files subnet.Writer // what plugins are written with

	src, dst string
	seen     map[string]Stamp // how each plugin looked when it was right; one goroutine calls Sync
}

// NewKeeper makes a Keeper that installs the plugins in src into dst.
func NewKeeper(src, dst string) *Keeper {
	return &Keeper{src: src, dst: dst, seen: map[string]Stamp{}}
}

// InstallPlugins makes one pass: the shim and, where they are missing or older, the standard plugins go from src to dst.
func InstallPlugins(ctx context.Context, src, dst string) (Report, error) {
	return NewKeeper(src, dst).Sync(ctx)
}

// Sync makes one pass. It goes on after an error and returns all of them joined. Without a source directory the error is
// ErrNoSource.
func (k *Keeper) Sync(ctx context.Context) (Report, error) {
	var r Report
	entries, err := os.ReadDir(k.src)
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("%w: %s is not there", ErrNoSource, k.src)
	}
	if err != nil {
		return r, fmt.Errorf("list the plugins to install: %w", err)
	}
	var errs []error
	for _, e := range entries {
		target := filepath.Join(k.dst, e.Name())
		if k.seen[e.Name()].Stands(target) {
			continue
		}
		if err := k.place(ctx, e.Name(), &r); err != nil {
			errs = append(errs, fmt.Errorf("install plugin %s: %w", e.Name(), err))
			continue
		}
		k.seen[e.Name()] = StampOf(target)
	}
	return r, errors.Join(errs...)
}

// place compares one plugin with ours and replaces it if need be.
func (k *Keeper) place(ctx context.Context, name string, r *Report) error {
	source, target := filepath.Join(k.src, name), filepath.Join(k.dst, name)
	ours, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	theirs, err := os.ReadFile(target)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return subnet.Cure(target, err)
	}
	present := err == nil
	replace, why := true, "was missing"
	switch {
	case present && bytes.Equal(ours, theirs) && executable(target):
		return nil
	case present && name == Shim:
		why = "was another build"
	case present && len(theirs) > 0 && len(theirs) < len(ours) && bytes.HasPrefix(ours, theirs):
		why = "was cut short" // by a power cut: whatever can still be started of it, it is ours
	case present:
		replace, why = older(ctx, source, target, theirs)
	}
	change := Change{Name: name, Why: why}
	if !replace {
		r.Kept = append(r.Kept, change)
		return nil
	}
	if err := write(k.Files, target, ours, 0o755); err != nil {
		return err
	}
	r.Installed = append(r.Installed, change)
	return nil
}

// older decides about a standard plugin that differs from ours, in words that a log can carry.
func older(ctx context.Context, source, target string, theirs []byte) (bool, string) {
	if !bytes.HasPrefix(theirs, []byte("\x7fELF")) && !bytes.HasPrefix(theirs, []byte("#!")) || !executable(target) {
		return true, "was no program"
	}
	have, err := askRelease(ctx, target)
	if errors.Is(err, syscall.ENOEXEC) {
		return true, "was no program that starts"
	}
	if err != nil {
		// A program that needs libraries of the host does not start in this container. It may well be newer.
		return false, "cannot be asked for its version here: " + err.Error()
	}
	want, err := askRelease(ctx, source)
	if err != nil {
		return false, "ours cannot be started: " + err.Error()
	}
	if have != (release{}) && want != (release{}) {
		return slices.Compare(have[:], want[:]) < 0, fmt.Sprintf("is %s, ours is %s", have, want)
	}
	// Builds without a version still tell which protocol they speak.
	theirTop, ourTop := highest(ctx, target), highest(ctx, source)
	return compareVersions(theirTop, ourTop) < 0, fmt.Sprintf("speaks CNI %s, ours %s", theirTop, ourTop)
}

// highest is the newest protocol version that a plugin speaks, "0.0.0" when it does not say.
func highest(ctx context.Context, path string) string {
	all, err := askProtocols(ctx, path)
	if err != nil || len(all) == 0 {
		return "0.0.0"
	}
	return all[len(all)-1]
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
