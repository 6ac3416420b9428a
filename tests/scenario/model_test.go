package scenario

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weft-cni/weft/tests/lane"
)

// The random stories are bounded by these variables of the environment: a seed to play a story again, and how long, or how
// many steps, to play on namespaces. Without them the seed is a new one, and the time short.
const (
	seedVariable  = "WEFT_MODEL_SEED"
	timeVariable  = "WEFT_MODEL_TIME"
	stepsVariable = "WEFT_MODEL_STEPS"
)

// bound tells when a random story on namespaces is long enough.
func bound(t *testing.T) func(step int) bool {
	t.Helper()
	text := os.Getenv(stepsVariable)
	if text == "" {
		end := time.Now().Add(playtime(t))
		return func(int) bool { return time.Now().Before(end) }
	}
	steps, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", stepsVariable, err)
	}
	return func(step int) bool { return step < steps }
}

func seed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv(seedVariable)
	if text == "" {
		return rand.Uint64()
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", seedVariable, err)
	}
	return n
}

// improvise plays a random story, and asks after each line whether every kernel is as the model says.
func improvise(t *testing.T, f flavour, seed uint64, more func(step int) bool) {
	t.Helper()
	w, err := newWorld(f)
	if err != nil {
		t.Fatal(err)
	}
	defer w.end()
	s := &story{World: w}
	g := newGenerator(seed, w.lane, 3)
	g.rules = f.rules != nil
	var script []string
	play := func(lines ...string) bool {
		for _, line := range lines {
			script = append(script, line)
			err := s.line(line)
			if err != nil && !strings.Contains(line, "do n") { // what is not there cannot be broken
				t.Errorf("%s=%d: step %d: %s: %v\n\nthe story up to here:\n%s", seedVariable, seed, len(script), line, err, strings.Join(script, "\n"))
				return false
			}
		}
		return true
	}
	steps := 0
	ok := play(g.first()...)
	for ; ok && more(steps); steps++ {
		ok = play(g.next(), "synced")
	}
	if ok && play(g.last()...) {
		t.Logf("%s=%d: %d steps", seedVariable, seed, steps)
	}
}

func TestRandomStoriesOnFakeKernelsEndAsTheModelSays(t *testing.T) {
	first := seed(t)
	for _, l := range lane.Lanes() {
		for i := range uint64(2) {
			t.Run(fmt.Sprintf("%s/%d", l, first+i), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					improvise(t, fakes(l), first+i, func(step int) bool { return step < 300 })
				})
			})
		}
	}
}

func playtime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(timeVariable)
	if text == "" {
		return 15 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", timeVariable, err)
	}
	return d
}
