package main

import (
	"io"
	"slices"
	"strings"
	"sync"
)

// beside runs the jobs, width at a time and in their order, and adds up what they counted. Each gets a writer that it shares.
// It is for tests that wait more than they compute, and await by condition, with deadlines for a machine under load.
func beside(out io.Writer, width int, jobs []func(io.Writer) tally) tally {
	shared := &lines{out: out}
	var mu sync.Mutex // guards sum
	var sum tally
	queue := make(chan func(io.Writer) tally)
	var workers sync.WaitGroup
	for range width {
		workers.Go(func() {
			for job := range queue {
				t := job(shared)
				mu.Lock()
				sum.add(t)
				mu.Unlock()
			}
		})
	}
	for _, job := range jobs {
		queue <- job
	}
	close(queue)
	workers.Wait()
	return sum
}

// lines is a writer for several at once.
type lines struct {
	mu  sync.Mutex // guards out
	out io.Writer
}

// Write implements io.Writer.
func (l *lines) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(text)
}

// longestFirst puts the packages that take longest at the start, so that no long one is left over at the end.
func longestFirst(pkgs []string) []string {
	long := []string{
		"tests/reliability", "tests/scenario", "subnet/kube", "backend/daemon", "cniplugin", "backend/policy", "backend/mesh",
		"backend/traffic", "backend/policy/watch", "backend/kernel", "backend/vxlan", "backend/policy/gate",
	}
	at := func(pkg string) int {
		i := slices.IndexFunc(long, func(l string) bool { return pkg == l || strings.HasSuffix(pkg, "/"+l) })
		if i < 0 {
			return len(long)
		}
		return i
	}
	sorted := slices.Clone(pkgs)
	slices.SortStableFunc(sorted, func(a, b string) int { return at(a) - at(b) })
	return sorted
}
