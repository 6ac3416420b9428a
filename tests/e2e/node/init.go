package node

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Init is the node's process 1. It builds the root, starts the services, restarts those that end, and reaps every orphan
// of the node: containerd's shims leave many, and each would stay a zombie.
func Init(specFile string) error {
	spec, err := ReadSpec(specFile)
	if err != nil {
		return err
	}
	if err := mountRoot(spec); err != nil {
		return err
	}
	if err := prepare(spec); err != nil {
		return err
	}
	if err := os.WriteFile("/run/booted", []byte("yes\n"), 0o644); err != nil {
		return fmt.Errorf("say that the node is up: %w", err)
	}
	services := servicesOf(spec)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		reap(services)
		for _, s := range services {
			if err := s.keepRunning(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
		<-tick.C
	}
}

// reap collects every child that has ended and notes which of them were services.
func reap(services []*service) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		for _, s := range services {
			s.ended(pid, status)
		}
	}
}
