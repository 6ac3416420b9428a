package bench

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"
)

// Figure is one line of the table of what policies cost.
type Figure struct {
	What       string
	Got        string
	Beside     string // what it is measured beside; "" for nothing but the limit
	Base       string
	Difference string
	Limit      string
	Kept       bool
}

// Figures renders them as the page has them.
func Figures(figures []Figure) string {
	var b strings.Builder
	b.WriteString("| what | figure | beside | which had | difference | limit | kept |\n|---|---|---|---|---|---|---|\n")
	for _, f := range figures {
		kept := "yes"
		if !f.Kept {
			kept = "**no**"
		}
		if f.Limit == "" {
			kept = ""
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join([]string{f.What, f.Got, f.Beside, f.Base, f.Difference, f.Limit, kept}, " | "))
	}
	return b.String()
}

// quantile is the smallest value that a share of all does not exceed.
func quantile[T int64 | float64 | time.Duration](all []T, share float64) T {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(int(math.Ceil(share*float64(len(sorted))))-1, 0)]
}

// load is how many processes wanted a processor within the last minute.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// mebi is a number of bytes in a reader's words.
func mebi(bytes float64) string { return fmt.Sprintf("%.1f MiB", bytes/(1<<20)) }
