package daemon

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// sysctlBook remembers on disk what the switches of the host were before we turned them, so that an uninstall leaves the host
// as it was found. A boot makes it void: the host's own configuration has spoken again since.
type sysctlBook struct {
	file  string
	files subnet.Writer
	boot  string // id of this boot; empty where it cannot be read
}

// bookText is the file's content.
type bookText struct {
	Boot string            `json:"boot"`
	Was  map[string]string `json:"was"` // values by path below /proc/sys/net
}

func newSysctlBook(file string, files subnet.Writer) sysctlBook {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it, two boots cannot be told apart
	return sysctlBook{file: file, files: files, boot: strings.TrimSpace(string(boot))}
}

// note adds a switch. What is noted already stays: the first value is the one that we found.
func (b sysctlBook) note(path, was string) error {
	all := b.noted()
	if _, ok := all[path]; ok {
		return nil
	}
	all[path] = was
	return b.write(all)
}

// forget takes a switch out that is as it was again.
func (b sysctlBook) forget(path string) error {
	all := b.noted()
	delete(all, path)
	return b.write(all)
}

func (b sysctlBook) write(all map[string]string) error {
	data, err := json.Marshal(bookText{Boot: b.boot, Was: all})
	if err != nil {
		return fmt.Errorf("note a sysctl: %w", err)
	}
	return b.files.WriteFile(b.file, append(data, '\n'), 0o600)
}

// noted gives the switches that were turned in this boot, and what they were. A book that cannot be read is an empty one, and
// what somebody else wrote into it names no other files than the switches that we turn.
func (b sysctlBook) noted() map[string]string {
	var text bookText
	data, err := os.ReadFile(b.file)
	if err != nil || json.Unmarshal(data, &text) != nil || text.Boot != b.boot || text.Was == nil {
		return map[string]string{}
	}
	maps.DeleteFunc(text.Was, func(path, was string) bool {
		s, ok := turned(path)
		return !ok || !slices.Contains(s.off, was)
	})
	return text.Was
}
