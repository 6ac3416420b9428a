package table

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestARunReplacesItsOwnGroupAndKeepsTheOthers(t *testing.T) {
	page := merge("", Group{Name: "kernel", Command: "make a", Names: []string{"x", "y"}, Rows: []Row{{Fault: "x", Runs: 1}, {Fault: "y", Runs: 1}}}, "day 1")
	page = merge(page, Group{Name: "agent", Command: "make b", Names: []string{"x"}, Rows: []Row{{Fault: "x", Runs: 7}}}, "day 2")
	page = merge(page, Group{Name: "kernel", Command: "make a", Names: []string{"z", "y"}, Rows: []Row{{Fault: "z", Runs: 2, Sent: 5, Lost: 1, Heals: []time.Duration{20 * time.Millisecond}, Note: "a|b"}}}, "day 3")
	want := preface + `
## agent

By ` + "`make b`" + `; last run: day 2.

` + head + `
| x | 7 | 0 | 0 | 0 | 0 | - |  |

## kernel

By ` + "`make a`" + `; last run: day 3.

` + head + `
| z | 2 | 5 | 1 | 0 | 0 | 0.020 s | a/b |
| y | 1 | 0 | 0 | 0 | 0 | - |  |
`
	if diff := cmp.Diff(want, page); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
}

func TestEachLaneOfAGroupHasAPartOfItsOwn(t *testing.T) {
	page := ""
	for _, lane := range []string{"ipv6", "ipv4", "dual"} {
		row := Row{Fault: "x", Runs: 1, Sent: 5, Lost: 1}
		if lane == "dual" {
			row.Families = []Family{{Sent: 3}, {Sent: 2, Lost: 1}}
		}
		page = merge(page, Group{Name: "kernel", Lane: lane, Command: "make a", Names: []string{"x"}, Rows: []Row{row}}, "day 1")
	}
	page = merge(page, Group{Name: "zoo", Command: "make a"}, "day 1")
	page = merge(page, Group{Name: "kernel", Lane: "dual", Command: "make a", Names: []string{"x"}}, "day 2") // what it does not make stays
	want := preface + `
## kernel

By ` + "`make a`" + `; last run: day 1.

` + head + `
| x | 1 | 5 | 1 | 0 | 0 | - |  |

## kernel, IPv6-only

By ` + "`WEFT_LANE=ipv6 make a`" + `; last run: day 1.

` + head + `
| x | 1 | 5 | 1 | 0 | 0 | - |  |

## kernel, dual-stack

By ` + "`WEFT_LANE=dual make a`" + `; last run: day 2. Sent and lost: IPv4 + IPv6.

` + head + `
| x | 1 | 3 + 2 | 0 + 1 | 0 | 0 | - |  |

## zoo

By ` + "`make a`" + `; last run: day 1.

` + head + `
`
	if diff := cmp.Diff(want, page); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
}

func TestTheSlowestOfTenRunsIsTheirP99(t *testing.T) {
	var r Row
	for i := range 10 {
		r.Heals = append(r.Heals, time.Duration(10-i)*time.Second)
	}
	if got := r.P99(); got != 10*time.Second {
		t.Errorf("p99 of ten runs is %v; want the slowest", got)
	}
	for range 190 {
		r.Heals = append(r.Heals, time.Second)
	}
	if got := r.P99(); got != 8*time.Second {
		t.Errorf("p99 of two hundred runs is %v; want the third slowest, 8s", got)
	}
}

func TestUpdateMakesThePageAndLeavesNoOtherFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reliability.md")
	for range 2 {
		if err := Update(path, Group{Name: "disk", Command: "make test", Names: []string{"full"}, Rows: []Row{{Fault: "full", Runs: 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "## disk") != 1 || !strings.Contains(string(text), "kernel ") {
		t.Errorf("page: %v\n%s", err, text)
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 1 {
		t.Errorf("files: %v, %v", files, err)
	}
}
