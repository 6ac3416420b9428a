package collect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// boot tells what an earlier boot, or another cluster, left behind from what this one made. Both signs are asked for:
// the boot's number, since clocks are wrong at boot, and the file's time, since pods may have come before this pass.
type boot struct {
	now        saved
	start      time.Time
	newBoot    bool // the last pass was on another boot
	newCluster bool // the last pass was in another cluster
}

// saved is the file that a pass leaves.
type saved struct {
	BootID    string `json:"bootID"`
	ClusterID string `json:"clusterID"`
}

func readBoot(opts Options) (boot, error) {
	var b boot
	id, err := os.ReadFile(filepath.Join(opts.Proc, "sys/kernel/random/boot_id"))
	if err != nil {
		return b, fmt.Errorf("read the boot's number: %w", err)
	}
	b.now = saved{BootID: strings.TrimSpace(string(id)), ClusterID: opts.ClusterID}
	if b.start, err = bootTime(opts.Proc); err != nil {
		return b, err
	}
	last, _ := readSaved(opts.State) // what cannot be read is none, and remember tells of it: addresses have to come free all the same
	b.newBoot = last.BootID != "" && last.BootID != b.now.BootID
	b.newCluster = last.ClusterID != "" && b.now.ClusterID != "" && last.ClusterID != b.now.ClusterID
	if b.now.ClusterID == "" {
		b.now.ClusterID = last.ClusterID // not known now; the next pass may know
	}
	return b, nil
}

// readSaved takes an unreadable file for none: the pass is then as careful as a first one.
func readSaved(path string) (saved, error) {
	var s saved
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read what the last pass left: %w", err)
	}
	if json.Unmarshal(data, &s) != nil {
		return saved{}, nil
	}
	return s, nil
}

// bootTime is btime of /proc/stat, in seconds since 1970 by the clock as it goes now.
func bootTime(proc string) (time.Time, error) {
	data, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return time.Time{}, fmt.Errorf("read the time of the boot: %w", err)
	}
	for line := range bytes.Lines(data) {
		if text, ok := strings.CutPrefix(string(line), "btime "); ok {
			sec, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil {
				return time.Time{}, fmt.Errorf("read the time of the boot: %w", err)
			}
			return time.Unix(sec, 0), nil
		}
	}
	return time.Time{}, errors.New("read the time of the boot: /proc/stat has no btime")
}

// earlier reports whether a file is surely from before this boot.
func (b boot) earlier(modTime time.Time) bool { return b.newBoot && modTime.Before(b.start) }

// remember leaves word for the next pass.
func (b boot) remember(opts Options) error {
	if last, err := readSaved(opts.State); err == nil && last == b.now {
		return nil
	}
	data, err := json.Marshal(b.now)
	if err != nil {
		return err
	}
	if err := opts.Files.WriteFile(opts.State, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("remember this pass: %w", err)
	}
	return nil
}
