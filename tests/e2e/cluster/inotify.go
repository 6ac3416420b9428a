package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// inotifyLimit is per user and kernel-wide: kubelets, containerds and kube-proxies of a few nodes use more than the usual
// 128 between them.
const (
	inotifyFile   = "/proc/sys/fs/inotify/max_user_instances"
	inotifyLimit  = 1024
	inotifyRecord = "inotify-before"
)

// raiseInotifyLimit raises the limit if it is lower, and records what it was.
func raiseInotifyLimit(dir string) error {
	text, err := os.ReadFile(inotifyFile)
	if err != nil {
		return fmt.Errorf("read the inotify limit: %w", err)
	}
	before, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("read the inotify limit: %w", err)
	}
	if before >= inotifyLimit {
		return nil
	}
	if err := writeFile(filepath.Join(dir, inotifyRecord), string(text)); err != nil {
		return err
	}
	return writeFile(inotifyFile, strconv.Itoa(inotifyLimit))
}

// restoreInotifyLimit puts the recorded limit back.
func restoreInotifyLimit(dir string) error {
	before, err := os.ReadFile(filepath.Join(dir, inotifyRecord))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the recorded inotify limit: %w", err)
	}
	return writeFile(inotifyFile, string(before))
}
