package reliability

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// Form is how long a run takes.
type Form string

// The forms, as WEFT_RELIABILITY has them.
const (
	Short Form = "short" // the worst rows, once: part of `make test`
	Once  Form = "once"  // every row that is picked by -run, once, without writing the page: to try a row
	Long  Form = "long"  // every row; those under 10 s ten times: `make test-reliability`
	Soak  Form = "soak"  // every row ten times: `make soak`
)

// FormOf reads the environment.
func FormOf() (Form, error) {
	switch f := Form(os.Getenv("WEFT_RELIABILITY")); f {
	case "":
		return Short, nil
	case Short, Once, Long, Soak:
		return f, nil
	default:
		return "", fmt.Errorf("WEFT_RELIABILITY=%q: want %s, %s, %s or %s", f, Short, Once, Long, Soak)
	}
}

// beside lets the test run while others of this package do, unless what this run measures goes into a page.
func beside(t *testing.T) {
	t.Helper()
	form, err := FormOf()
	if err != nil {
		t.Fatal(err)
	}
	if !form.Writes() {
		t.Parallel()
	}
}

// within is what a form accepts where the contract names a time: that, where the machine is the test's alone, and ten times as
// long where others use it too.
func (f Form) within(contract time.Duration) time.Duration {
	if f.Writes() {
		return contract
	}
	return 10 * contract
}

// Writes reports whether the form writes docs/reliability.md.
func (f Form) Writes() bool { return f == Long || f == Soak }

// Command makes the page's rows in this form.
func (f Form) Command() string {
	if f == Soak {
		return "make soak"
	}
	return "make test-reliability"
}

// Times is how often the form plays a fault; 0 leaves it out.
func (f Form) Times(fault Fault) int {
	const often = 10
	switch {
	case f == Short && !fault.Worst:
		return 0
	case f == Short || f == Once || f == Long && fault.Long:
		return 1
	case fault.Long:
		return often
	default:
		return max(often, fault.Times)
	}
}
