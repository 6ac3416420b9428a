package kube

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
)

// L-03: under flannel's own ClusterRole policies are forbidden for as long as the cluster lives.
func TestL03WhatIsForbiddenForGoodIsAskedForEverMoreSeldom(t *testing.T) {
	policies := schema.GroupResource{Resource: "networkpolicies"}
	forbidden := error(apierrors.NewForbidden(policies, "", errors.New("no")))
	for _, c := range []struct {
		answer       error
		optional     bool
		most, within int // requests in an hour, and seconds until one comes after a refusal of ten seconds
	}{{forbidden, true, 400, 6}, {apierrors.NewNotFound(policies, ""), true, 400, 6}, {forbidden, false, 20000, 2}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
			// client-go keeps errors a millisecond apart by a clock of the whole process, which a bubble's is far behind.
			utilruntime.HandleErrorWithContext(ctx, forbidden, "the first")
			began, calls, first := time.Now(), 0, time.Duration(0)
			ask := func() error {
				calls++
				if since := time.Since(began); first == 0 && since > 10*time.Second {
					first = since
				}
				return c.answer
			}
			f := Feed{
				Client: &Client{Interface: fake.NewClientset(), Server: "fake"}, Note: func(error) {}, Optional: c.optional,
				Store: newStore("n1", Rules{}, slog.New(slog.DiscardHandler), func() {}),
				Kind: Kind{
					Name: "nodes", Object: &corev1.Node{},
					List:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, ask() },
					Watch: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, ask() },
				},
			}
			done := make(chan struct{})
			go func() { f.Run(ctx); close(done) }()
			time.Sleep(time.Hour)
			cancel()
			<-done
			if calls > c.most || first > time.Duration(10+c.within)*time.Second {
				t.Errorf("%v, optional %t: %d requests in an hour, the first after ten seconds came after %v", c.answer, c.optional, calls, first)
			}
			t.Logf("%v, optional %t: %d requests in an hour", c.answer, c.optional, calls)
		})
	}
}
