package daemon

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weft-cni/weft/backend/traffic"
	"github.com/weft-cni/weft/subnet"
)

// hearing knows what the kernel lets in of what peers send. They send by a backend as soon as they see it announced, so what
// would drop their packets has to be out of the way before: a strict rp_filter, and rules that want them encrypted.
type hearing struct {
	devices atomic.Pointer[[]string]       // whose rp_filter has been seen to
	sealed  atomic.Pointer[traffic.Sealed] // pod ranges whose packets in the clear are dropped, and by what devices they are let in
	failing atomic.Bool                    // the rules could not be written when that was tried last
}

const (
	hearingPoll = 10 * time.Millisecond
	hearingWait = 2 * time.Second  // then it is announced although rules cannot be written, which has a part of its own on the board
	hearingMost = 30 * time.Second // for rules that are neither written nor refused: a busy machine takes seconds for them
)

// seenTo notes the devices of a plan, whatever came of it: where nothing can be set, nothing is waited for.
func (h *hearing) seenTo(a *applied) {
	devices := slices.Concat(a.Plan.Devices, a.Plan.Plain)
	h.devices.Store(&devices)
}

// lags tells whether something still drops what the plan lets in.
func (h *hearing) lags(a *applied) bool {
	if a.uses(subnet.IPv4) { // IPv6 has no rp_filter
		seen := h.devices.Load()
		for _, device := range slices.Concat(a.Plan.Devices, a.Plan.Plain) {
			if seen == nil || !slices.Contains(*seen, device) {
				return true
			}
		}
	}
	sealed := h.sealed.Load()
	if sealed == nil {
		return true // the rules are those of an earlier run, which may have had another backend
	}
	drops := false
	for _, f := range subnet.Families() {
		for _, p := range sealed.Ranges[f] {
			drops = true
			if !slices.Contains(a.Plan.Encrypted[f], p) {
				return true
			}
		}
	}
	return drops && slices.ContainsFunc(a.Plan.Devices, func(device string) bool { return !slices.Contains(sealed.Devices, device) })
}

// await waits, for a limited time, until the plan's packets are let in.
func (h *hearing) await(ctx context.Context, a *applied) {
	began := time.Now()
	poll := time.NewTicker(hearingPoll)
	defer poll.Stop()
	for h.lags(a) {
		waited := time.Since(began)
		if waited > hearingMost || waited > hearingWait && h.failing.Load() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		}
	}
}
