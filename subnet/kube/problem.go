package kube

import "github.com/weft-cni/weft/subnet"

// Reasons of the problems that this package reports.
const (
	ReasonBadPodCIDR       = "BadPodCIDR"
	ReasonOutsideNetwork   = "PodCIDROutsideNetwork"
	ReasonBadPublicIP      = "BadPublicIP"
	ReasonBadBackendData   = "BadBackendData"
	ReasonBadBackendPort   = "BadBackendPort"
	ReasonOtherBackend     = "OtherBackend"
	ReasonBadAnnotation    = "BadAnnotation"
	ReasonPodCIDRConflict  = "PodCIDRConflict"
	ReasonMACConflict      = "MACConflict"
	ReasonPublicIPConflict = "PublicIPConflict"
)

// SelfProblems picks the problems of the own node out of a snapshot. A conflict among them means that other nodes may
// send the own pods' packets elsewhere; a node that reports itself ready then would not be telling the truth.
func SelfProblems(s subnet.Snapshot) []subnet.Problem {
	var own []subnet.Problem
	for _, p := range s.Problems {
		if p.Node == s.Self.Name {
			own = append(own, p)
		}
	}
	return own
}
