package daemon

import (
	"context"
	"strings"
	"testing"

	"github.com/weft-cni/weft/tests/nstest"
)

func TestK01ASecondAgentOnANodeIsToldWhoTheFirstIs(t *testing.T) {
	ns := nstest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	first := &lock{identity: "weft v1, kube-flannel-ds-abcde"}
	done := make(chan error, 1)
	err := ns.Do(func() error {
		if err := first.acquire(ctx); err != nil {
			return err
		}
		go func() { done <- first.answer(ctx) }()
		err := (&lock{identity: "second"}).acquire(ctx)
		if err == nil || !strings.Contains(err.Error(), "weft v1, kube-flannel-ds-abcde") {
			t.Errorf("the second agent got: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := ns.Do(func() error { return (&lock{identity: "second"}).acquire(t.Context()) }); err != nil {
		t.Errorf("the lock outlived its owner: %v", err)
	}
}
