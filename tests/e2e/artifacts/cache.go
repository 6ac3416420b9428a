package artifacts

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Cache is the folder that outlives clusters: binaries, image archives, base trees.
type Cache struct {
	// Dir is $WEFT_CACHE, else $XDG_CACHE_HOME/weft, else ~/.cache/weft.
	Dir string
}

// OpenCache names the cache folder and makes it.
func OpenCache() (Cache, error) {
	dir := os.Getenv("WEFT_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return Cache{}, fmt.Errorf("find the cache folder: %w", err)
		}
		dir = filepath.Join(base, "weft")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Cache{}, fmt.Errorf("make the cache folder: %w", err)
	}
	return Cache{Dir: dir}, nil
}

// keyLength is enough to tell versions apart and short enough to read.
const keyLength = 12

// Key is a short name for a set of inputs: equal inputs, equal key.
func Key(inputs ...string) string {
	sum := sha256.New()
	for _, input := range inputs {
		fmt.Fprintf(sum, "%d:%s", len(input), input)
	}
	return hex.EncodeToString(sum.Sum(nil))[:keyLength]
}

// Make returns the path <kind>/<name>-<key> below the cache and calls build only if it is not there yet. build fills a
// temporary path that is renamed when it is whole, so that an interrupted build leaves nothing that looks finished.
func (c Cache) Make(kind, name, key string, build func(tmp string) error) (string, error) {
	final := filepath.Join(c.Dir, kind, name+"-"+key)
	if _, err := os.Stat(final); err == nil {
		return final, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look up %s in the cache: %w", name, err)
	}
	tmp := final + ".part"
	if err := os.RemoveAll(tmp); err != nil {
		return "", fmt.Errorf("clear an unfinished %s: %w", name, err)
	}
	if err := os.MkdirAll(filepath.Dir(tmp), 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder for %s: %w", name, err)
	}
	if err := build(tmp); err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	if err := os.Rename(tmp, final); err != nil {
		return "", fmt.Errorf("put %s into the cache: %w", name, err)
	}
	return final, c.forget(kind, name, final)
}

// forget removes what an earlier version of the thing left, so that the cache does not grow with every change.
func (c Cache) forget(kind, name, keep string) error {
	old, err := filepath.Glob(filepath.Join(c.Dir, kind, name+"-"+strings.Repeat("?", keyLength)))
	if err != nil {
		return fmt.Errorf("look for old versions of %s: %w", name, err)
	}
	for _, path := range old {
		if path == keep {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove an old version of %s: %w", name, err)
		}
	}
	return nil
}
