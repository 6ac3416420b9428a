package table

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const preface = `# What breaks it, and what that costs

Written by the runs themselves; do not edit. Every packet is counted: while a fault was made, each pair of nodes sent 100
numbered packets a second each way, one TCP connection stayed open, and 20 new ones a second were opened to a host outside,
where their source address was looked at. A number is lost when it has not come one second after the last was sent. A heal
time runs from the damage until everything of ours is there again.

A fault that is over in 10 seconds is made ten times or more, a longer one once, by ` + "`make test-reliability`; `make soak`" + ` makes each ten
times. A row that may lose packets says why; all others must lose none, and a run in which one does fails.
`

// order is the order of the groups on the page; others follow by name.
func order() []string {
	return []string{"agent", "API server", "kernel", "underlay", "disk", "pods", "cluster", "upgrade", "backend", "host-gw", "one family", "migration", "e2e"}
}

// Update writes a group into the page. Several runs may do so at once.
func Update(path string, g Group) error {
	unlock, err := lock(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("update %s: %w", path, err)
	}
	defer unlock()
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("update %s: %w", path, err)
	}
	temp := path + ".new"
	if err := os.WriteFile(temp, []byte(merge(string(old), g, stamp(filepath.Dir(path)))), 0o644); err != nil {
		return fmt.Errorf("update %s: %w", path, err)
	}
	return os.Rename(temp, path)
}

// merge puts a group into the text of a page.
func merge(page string, g Group, stamp string) string {
	parts := map[string]string{}
	for i, part := range strings.Split("\n"+page, "\n"+heading) {
		if i > 0 {
			name, _, _ := strings.Cut(part, "\n")
			parts[name] = heading + strings.TrimRight(part, "\n") + "\n"
		}
	}
	parts[g.title()] = g.render(rowsOf(parts[g.title()]), stamp)
	names := make([]string, 0, len(parts))
	for name := range parts {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if ia, ib := place(a), place(b); ia != ib {
			return ia - ib
		}
		return strings.Compare(a, b)
	})
	text := preface
	for _, name := range names {
		text += "\n" + parts[name]
	}
	return text
}

// place is where a part belongs: its group's lanes follow each other.
func place(name string) int {
	name, _, _ = strings.Cut(name, laneMark)
	if i := slices.Index(order(), name); i >= 0 {
		return i
	}
	return len(order())
}

// stamp says when, on what kernel and of which commit a run was.
func stamp(dir string) string {
	kernel := "unknown"
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Release[:])
	}
	commit := "unknown"
	cmd := exec.Command("git", "rev-parse", "--short=12", "HEAD")
	cmd.Dir = dir
	if out, err := cmd.Output(); err == nil {
		commit = strings.TrimSpace(string(out))
	}
	return fmt.Sprintf("%s, kernel %s, commit %s", time.Now().UTC().Format(time.DateOnly), kernel, commit)
}

// lock keeps runs that write the page at once from each other: the folder is the lock, so that no file is left over.
func lock(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { f.Close() }, nil
}
