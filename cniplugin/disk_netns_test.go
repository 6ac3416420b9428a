package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// disk is a file system that a directory of the node lies on, and what can go wrong with it.
type disk struct {
	*world
	dir string
}

// harm makes the disk unusable, heal takes that back.
type harm struct {
	do, heal func(disk)
	says     string // in the error of a write that needs what is missing
	del      bool   // DEL fails too
}

func harms() map[string]harm {
	fill := func(d disk, content []byte) {
		d.must(os.Mkdir(filepath.Join(d.dir, "filler"), 0o755))
		for i := 0; ; i++ {
			if i == 1000 {
				d.Fatal("the disk does not fill up")
			}
			err := os.WriteFile(filepath.Join(d.dir, "filler", strconv.Itoa(i)), content, 0o600)
			if errors.Is(err, syscall.ENOSPC) {
				return
			}
			d.must(err)
		}
	}
	drop := func(d disk) { d.must(os.RemoveAll(filepath.Join(d.dir, "filler"))) }
	mount := func(how string) func(disk) {
		return func(d disk) { d.run("mount", "-o", "remount,"+how, d.dir) }
	}
	return map[string]harm{
		"full":             {do: func(d disk) { fill(d, make([]byte, 4096)) }, heal: drop, says: "is full: make room (df -h "},
		"without an inode": {do: func(d disk) { fill(d, nil) }, heal: drop, says: "has no inodes left: remove files (df -i "},
		"read-only":        {do: mount("ro"), heal: mount("rw"), says: "is read-only: ", del: true},
	}
}

// An ADD on a bad disk says which directory and what to do, and leaves nothing anywhere; a DEL releases what it can, and
// the rest when it comes again.
func TestC06ABadDiskIsNamedAndLeavesNothing(t *testing.T) {
	for _, dir := range []string{"flannel", "networks"} {
		for name, harm := range harms() {
			t.Run(dir+" "+name, func(t *testing.T) {
				w := newWorld(t)
				d := disk{w, w.file(dir)}
				w.must(os.Mkdir(d.dir, 0o755))
				w.run("mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=32", "tmpfs", d.dir)
				t.Cleanup(func() { w.run("umount", d.dir) })
				neighbour, p, late := w.pod("neighbour"), w.pod("p"), w.pod("late")
				w.add(neighbour)
				out, err := w.call("ADD", p, w.conf())
				w.must(err)
				harm.do(d)
				for range 3 {
					_, err := w.call("ADD", late, w.conf())
					if err == nil || !strings.Contains(err.Error(), harm.says) || !strings.Contains(err.Error(), d.dir) {
						t.Errorf("ADD: %v; want the directory %s and ... %q", err, d.dir, harm.says)
					}
					w.holds("a failed ADD", neighbour, p)
				}
				if _, err := w.call("DEL", late, w.conf()); err != nil {
					t.Errorf("DEL of the ADD that failed: %v", err)
				}
				_, err = w.call("DEL", p, w.conf(prev(out)))
				if harm.del != (err != nil) || err != nil && !strings.Contains(err.Error(), harm.says) {
					t.Errorf("DEL: %v", err)
				}
				w.run("ip", "netns", "exec", neighbour.id, "ping", "-c1", "-W5", w.at(1))
				harm.heal(d)
				w.del(p)
				w.holds("DEL", neighbour)
				w.add(late)
				w.holds("ADD after all", neighbour, late)
				w.del(late)
				w.del(neighbour)
				w.holds("at the end")
			})
		}
	}
}
