package collect

import (
	"context"
	"fmt"
	"time"

	"github.com/weft-cni/weft/backend"
	"github.com/weft-cni/weft/subnet/ipam"
)

// lockWait bounds the wait for host-local, which holds its lock for milliseconds.
const lockWait = 10 * time.Second

// apply carries a plan out, looking again under the locks at what may have changed since. What cannot be removed is told of and
// keeps nothing else from it: one file that is immutable must not use the range up.
func (p plan) apply(ctx context.Context, opts Options) (Report, error) {
	report := Report{Kept: p.kept, Problems: p.problems}
	var errs []error
	if len(p.free)+len(p.restore) > 0 {
		errs = append(errs, p.applyReservations(ctx, opts, &report))
	}
	errs = append(errs, p.applyRecords(opts.records(), &report))
	for _, file := range p.results {
		if err := opts.results().Remove(file); err != nil {
			errs = append(errs, err)
			continue
		}
		report.Results = append(report.Results, file)
	}
	return report, backend.Join(errs)
}

func (p plan) applyRecords(records ipam.Records, report *Report) error {
	var errs []error
	for _, e := range p.records {
		now, err := records.List()
		if err != nil {
			return err
		}
		if !contains(now, e) || records.BusyName(e.Name) {
			continue // written anew, or in hand
		}
		if err := records.RemoveName(e.Name); err != nil {
			errs = append(errs, err)
			continue
		}
		report.Records = append(report.Records, e.Name)
	}
	return backend.Join(append(errs, records.RemoveTemps(time.Now().Add(-time.Hour))))
}

func (p plan) applyReservations(ctx context.Context, opts Options, report *Report) error {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	return opts.store().Update(ctx, func(tx ipam.Tx) error {
		var errs []error
		for _, f := range p.free {
			now, ok := tx.Get(f.Addr)
			if !ok || !same(now, f.Reservation) || !f.Broken && opts.records().Busy(f.Owner) {
				continue // given back, taken anew, or in hand
			}
			if err := tx.Free(f.Addr); err != nil {
				errs = append(errs, err)
				continue
			}
			report.Freed = append(report.Freed, Change{f.Addr, f.Owner, f.why})
		}
		return backend.Join(append(errs, p.applyRestore(tx, opts, report)))
	})
}

// applyRestore puts reservations back for addresses that still live: a DEL takes the address off first and frees it
// then, and may just have been between the two.
func (p plan) applyRestore(tx ipam.Tx, opts Options, report *Report) error {
	if len(p.restore) == 0 {
		return nil
	}
	pods, err := opts.Kernel.Pods(opts.NetnsDir)
	if err != nil {
		return fmt.Errorf("see living pods: %w", err)
	}
	var errs []error
	for _, c := range p.restore {
		if !(view{pods: pods}).lives(c.Addr) {
			continue
		}
		if r, ok := tx.Get(c.Addr); ok && r.Owner == ipam.Recovered() {
			if err := tx.Free(c.Addr); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		done, err := tx.Reserve(c.Addr, c.Owner)
		if err != nil {
			errs = append(errs, err)
		}
		if done {
			report.Restored = append(report.Restored, c)
		}
	}
	return backend.Join(errs)
}

func contains(entries []ipam.Entry, e ipam.Entry) bool {
	for _, other := range entries {
		if other.Name == e.Name && other.ModTime.Equal(e.ModTime) {
			return true
		}
	}
	return false
}

func same(a, b ipam.Reservation) bool {
	return a.Addr == b.Addr && a.Owner == b.Owner && a.Broken == b.Broken && a.ModTime.Equal(b.ModTime)
}
