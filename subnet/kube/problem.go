package kube

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/claim"
)

// Reasons of the problems that this package reports.
const (
	ReasonBadPodCIDR       = claim.ReasonBadPodCIDR
	ReasonNoPodCIDR        = claim.ReasonNoPodCIDR
	ReasonNoPublicIP       = claim.ReasonNoPublicIP
	ReasonOutsideNetwork   = claim.ReasonOutsideNetwork
	ReasonBadPublicIP      = claim.ReasonBadPublicIP
	ReasonBadBackendData   = claim.ReasonBadBackendData
	ReasonBadBackendPort   = claim.ReasonBadBackendPort
	ReasonBadBackendAlso   = claim.ReasonBadBackendAlso
	ReasonOtherBackend     = claim.ReasonOtherBackend
	ReasonBadAnnotation    = claim.ReasonBadAnnotation
	ReasonPodCIDRConflict  = claim.ReasonPodCIDRConflict
	ReasonMACConflict      = claim.ReasonMACConflict
	ReasonKeyConflict      = claim.ReasonKeyConflict
	ReasonPublicIPConflict = claim.ReasonPublicIPConflict
)

// ErrYields tells that an older node has what this one claims. Only an administrator can mend it.
var ErrYields = errors.New("an older node has it")

// SelfProblems picks the problems of the own node out of a snapshot.
func SelfProblems(s subnet.Snapshot) []subnet.Problem {
	var own []subnet.Problem
	for _, p := range s.Problems {
		if p.Node == s.Self.Name {
			own = append(own, p)
		}
	}
	return own
}

// YieldsMAC tells that an older node has a VTEP MAC that this one announces, so that nobody sends to this one until it has
// another.
func YieldsMAC(s subnet.Snapshot, mac subnet.MAC) bool {
	return yields(s, ReasonMACConflict, mac.String())
}

// YieldsKey tells the same of a WireGuard key, as two machines have it of which one is a copy of the other.
func YieldsKey(s subnet.Snapshot, key subnet.Key) bool {
	return yields(s, ReasonKeyConflict, key.String())
}

func yields(s subnet.Snapshot, reason, value string) bool {
	return slices.ContainsFunc(SelfProblems(s), func(p subnet.Problem) bool {
		return p.Yields && p.Reason == reason && p.Value == value
	})
}

// CheckYields is an error, wrapping ErrYields, when other nodes send to an older node what is for this one: then this
// node must not call itself ready. The older node goes on and is not troubled. sharedIP accepts a public IP that two
// nodes announce.
func CheckYields(s subnet.Snapshot, sharedIP bool) error {
	var errs []error
	for _, p := range SelfProblems(s) {
		if p.Yields && !(sharedIP && p.Reason == ReasonPublicIPConflict) {
			errs = append(errs, fmt.Errorf("%w: %s", ErrYields, p.Text))
		}
	}
	return errors.Join(errs...)
}
