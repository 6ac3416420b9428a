package reliability

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/weft-cni/weft/subnet"
)

// Tally counts numbered things of many streams: what was sent, and how often each came.
type Tally struct {
	mu      sync.Mutex // guards what follows
	streams map[flow][]uint8
	wrong   [2]int   // by family
	notes   []string // about some of what went wrong
}

// flow is one stream of one family.
type flow struct {
	family subnet.Family
	name   string
}

// String is "IPv6 udp n1 to n2".
func (f flow) String() string { return f.family.String() + " " + f.name }

// sent notes the next number of a stream and returns it.
func (t *Tally) sent(stream flow) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.streams == nil {
		t.streams = map[flow][]uint8{}
	}
	t.streams[stream] = append(t.streams[stream], 0)
	return len(t.streams[stream]) - 1
}

// came notes that a number came. One that was never sent comes from an earlier row, and does not count.
func (t *Tally) came(stream flow, number int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if list := t.streams[stream]; number >= 0 && number < len(list) && list[number] < 255 {
		list[number]++
	}
}

// mistake notes something that came as it never should.
func (t *Tally) mistake(f subnet.Family, count int, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wrong[f] += count
	t.note(fmt.Sprintf(format, args...))
}

// remark adds to what is told when a row fails.
func (t *Tally) remark(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.note(fmt.Sprintf(format, args...))
}

func (t *Tally) note(text string) {
	const most = 20
	if len(t.notes) < most {
		t.notes = append(t.notes, text)
	}
}

// Count is a tally's sum, by family.
type Count struct {
	Sent, Lost, Duplicated, Wrong [2]int
	Notes                         []string // which numbers of which streams were lost, and the like
}

// String is one line.
func (c Count) String() string {
	text := ""
	for _, f := range subnet.Families() {
		if c.Sent[f] > 0 {
			text += fmt.Sprintf("%s: %d sent, %d lost, %d duplicated, %d with a wrong source; ", f, c.Sent[f], c.Lost[f], c.Duplicated[f], c.Wrong[f])
		}
	}
	return text + strings.Join(c.Notes, "; ")
}

// count sums up.
func (t *Tally) count() Count {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := Count{Wrong: t.wrong, Notes: slices.Clone(t.notes)}
	for stream, list := range t.streams {
		f := stream.family
		var lost, twice []int
		for number, n := range list {
			switch {
			case n == 0:
				lost = append(lost, number)
			case n > 1:
				twice = append(twice, number)
				c.Duplicated[f] += int(n) - 1
			}
		}
		c.Sent[f] += len(list)
		c.Lost[f] += len(lost)
		if len(lost)+len(twice) > 0 && len(c.Notes) < 40 {
			c.Notes = append(c.Notes, fmt.Sprintf("%s: lost %s, twice %s of %d", stream, ranges(lost), ranges(twice), len(list)))
		}
	}
	return c
}

// complete reports whether everything has come.
func (t *Tally) complete() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, list := range t.streams {
		if slices.Contains(list, 0) {
			return false
		}
	}
	return true
}

// arrived reports whether everything of one stream has come.
func (t *Tally) arrived(stream flow) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !slices.Contains(t.streams[stream], 0)
}

// ranges writes numbers in a row as one: 3-17.
func ranges(numbers []int) string {
	if len(numbers) == 0 {
		return "none"
	}
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(numbers[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		}
		i = j + 1
	}
	return strings.Join(parts[:min(len(parts), 8)], " ")
}
