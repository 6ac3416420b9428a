package daemon

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// sysctlBook remembers on disk which switches of the host were off before we turned them on, so that an uninstall leaves the
// host as it was found. A boot makes it void: the host's own configuration has spoken again since.
type sysctlBook struct {
	file  string
	files subnet.Writer
	boot  string // id of this boot; empty where it cannot be read
}

// bookText is the file's content.
type bookText struct {
	Boot string   `json:"boot"`
	Off  []string `json:"off"` // paths below /proc/sys/net that were 0
}

func newSysctlBook(file string, files subnet.Writer) sysctlBook {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it, two boots cannot be told apart
	return sysctlBook{file: file, files: files, boot: strings.TrimSpace(string(boot))}
}

// note adds a switch.
func (b sysctlBook) note(path string) error {
	off := b.noted()
	if slices.Contains(off, path) {
		return nil
	}
	data, err := json.Marshal(bookText{Boot: b.boot, Off: append(off, path)})
	if err != nil {
		return fmt.Errorf("note a sysctl: %w", err)
	}
	return b.files.WriteFile(b.file, append(data, '\n'), 0o600)
}

// noted lists the switches that were turned on in this boot. A book that cannot be read is an empty one.
func (b sysctlBook) noted() []string {
	var text bookText
	data, err := os.ReadFile(b.file)
	if err != nil || json.Unmarshal(data, &text) != nil || text.Boot != b.boot {
		return nil
	}
	return slices.DeleteFunc(text.Off, func(path string) bool { return !isNeeded(path) })
}

// isNeeded keeps a book that somebody wrote into from naming other files than the switches that we know.
func isNeeded(path string) bool {
	for _, f := range subnet.Families() {
		if slices.ContainsFunc(needed(f), func(s sysctl) bool { return s.path == path }) {
			return true
		}
	}
	return false
}
