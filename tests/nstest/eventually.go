package nstest

import (
	"testing"
	"time"
)

// Eventually waits until the condition holds, and ends the test with the condition's last error when it does not
// within the given time. It returns how long it took.
func Eventually(t testing.TB, within time.Duration, condition func() error) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		err := condition()
		if err == nil {
			return time.Since(start)
		}
		if time.Since(start) > within {
			t.Fatalf("not within %v: %v", within, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
