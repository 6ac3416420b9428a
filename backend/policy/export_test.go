package policy

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/backend/netfilter"
)

// NewFake renders a Ruleset into knftables' fake kernel.
func NewFake(t *testing.T, r Ruleset) *knftables.Fake {
	t.Helper()
	fake := knftables.NewFake(knftables.InetFamily, TableName)
	tx := fake.NewTransaction()
	writer{tx: tx, bundle: 1, sign: signature{text: "test"}}.replace(r)
	if err := fake.Run(context.Background(), tx); err != nil {
		t.Fatal(err)
	}
	return fake
}

// NewPatient makes a Manager that reads the kernel's table only when somebody has changed it.
func NewPatient(h netfilter.Host) *Manager {
	m := NewGuarded(h)
	m.reread = time.Hour
	return m
}

// StepFake changes a fake kernel from one Ruleset to the next, as the Manager would.
func StepFake(fake *knftables.Fake, have, want Ruleset) error {
	d := Diff(have, want)
	if d.Empty() {
		return nil
	}
	tx := fake.NewTransaction()
	w := writer{tx: tx, bundle: 1, sign: signature{text: "test"}}
	w.apply(d, want)
	if err := fake.Run(context.Background(), tx); err != nil || d.rewrite {
		return err
	}
	tx = fake.NewTransaction()
	w.tx = tx
	w.sweep(d.old)
	return errors.Join(fake.Run(context.Background(), tx))
}

// Cuts tells whether a change of the rules makes the Manager look for connections that are no longer allowed.
func Cuts(have, want Ruleset, held func(netip.Addr) bool) bool { return Diff(have, want).cuts(held) }
