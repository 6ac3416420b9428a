package reliability

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// watch looks at what the agents say and use while a fault is made: however bad it gets, that stays bounded.
type watch struct {
	bench *Bench
	began time.Time
	size  map[*Agent]int // of the log, when it began
	runs  map[*Agent]int // starts so far
	cpu   map[*Agent]used
}

// used is the CPU time of one process.
type used struct {
	pid  int
	time time.Duration
}

const (
	// burst is how many lines of one kind may come at once, before one a second is the measure.
	burst = 10
	// memory is what an agent of this small cluster may use. Go's runtime and client-go alone take a third of it.
	memory = 100 << 20
)

func (b *Bench) watch() *watch {
	w := &watch{bench: b, began: time.Now(), size: map[*Agent]int{}, runs: map[*Agent]int{}, cpu: map[*Agent]used{}}
	for _, n := range b.Nodes {
		w.size[n.Agent] = len(n.Agent.Log())
		w.runs[n.Agent] = n.Agent.Starts()
		w.cpu[n.Agent] = cpuOf(n.Agent.PID())
	}
	return w
}

// judge says what was too much.
func (w *watch) judge(f Fault, runs int) []error {
	var errs []error
	took := time.Since(w.began)
	for _, n := range w.bench.Nodes {
		a := n.Agent
		starts := a.Starts() - w.runs[a]
		allowed := burst*(1+starts) + int(took.Seconds()) + 1 + f.Lines*runs
		said := a.Log()
		for kind, lines := range kinds(said[min(w.size[a], len(said)):]) {
			if len(lines) > allowed {
				errs = append(errs, fmt.Errorf("%s said %q %d times in %v, with %d starts; at most %d:\n%s", n.Name, kind, len(lines), took, starts, allowed, lines[len(lines)-1]))
			}
		}
		pid := a.PID()
		if pid == 0 {
			continue
		}
		if err := a.Live(); err != nil {
			errs = append(errs, fmt.Errorf("the kubelet would kill the agent: %w", err))
		}
		if now := cpuOf(pid); now.pid == w.cpu[a].pid && now.time-w.cpu[a].time > took/2+time.Second {
			errs = append(errs, fmt.Errorf("%s used %v of CPU in %v", n.Name, now.time-w.cpu[a].time, took))
		}
		if used := resident(pid); used > memory {
			errs = append(errs, fmt.Errorf("%s holds %d MiB of memory; at most %d", n.Name, used>>20, memory>>20))
		}
	}
	return errs
}

// kinds sorts log lines by their message and loop: a loop that says one thing again and again says it with other numbers.
func kinds(log string) map[string][]string {
	kind := regexp.MustCompile(`(?:level|msg|loop)=(?:"(?:[^"\\]|\\.)*"|\S+)`)
	out := map[string][]string{}
	for line := range strings.Lines(log) {
		key := strings.Join(kind.FindAllString(line, -1), " ")
		out[key] = append(out[key], strings.TrimSpace(line))
	}
	return out
}

// cpuOf reads how much CPU time a process has used, in both modes.
func cpuOf(pid int) used {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return used{}
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return used{}
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	const tick = 10 * time.Millisecond // USER_HZ is 100 everywhere
	return used{pid: pid, time: time.Duration(user+system) * tick}
}

// resident reads how much memory a process holds, in bytes.
func resident(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, _ := strconv.Atoi(fields[0])
	return kib << 10
}
