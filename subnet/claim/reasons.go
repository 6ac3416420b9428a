package claim

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
