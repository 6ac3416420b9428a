package daemon

import (
	"context"
	"net"
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

// Abstract sockets know no owner: whatever runs in the host's network can take the name first, and answer what it likes.
func TestK01WhatAStrangerAnswersIsOneShortLine(t *testing.T) {
	ns := nstest.New(t)
	for name, c := range map[string]struct{ answer, want string }{
		"without an end":  {strings.Repeat("x", 1<<20), "one that does not answer"},
		"nothing":         {"", "one that does not answer"},
		"control letters": {"a\x1b[2Jb\rc\td\n", "manages this node: a[2Jbcd;"},
	} {
		err := ns.Do(func() error {
			l, err := net.Listen("unix", lockName)
			if err != nil {
				return err
			}
			defer l.Close()
			go func() {
				if c2, err := l.Accept(); err == nil {
					_, _ = c2.Write([]byte(c.answer)) // the reader may hang up first
					_ = c2.Close()
				}
			}()
			err = (&lock{identity: "ours"}).acquire(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 600 {
				t.Errorf("%s: %.700v", name, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
