package daemon

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestAStopDoesNotWaitForWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		hang := make(chan struct{})
		defer close(hang)
		time.AfterFunc(time.Minute, stop)
		begin := time.Now()
		err, ended := waitAtMost(ctx, stopPatience, func() error { <-hang; return nil })
		if took := time.Since(begin); err != nil || ended || took != time.Minute+stopPatience {
			t.Errorf("error %v, ended %v, after %s", err, ended, took)
		}
	})
}

func TestAStopWaitsForARoundThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		cause := errors.New("round")
		err, ended := waitAtMost(ctx, stopPatience, func() error { time.Sleep(time.Second); return cause })
		if !errors.Is(err, cause) || !ended {
			t.Errorf("error %v, ended %v", err, ended)
		}
	})
}
