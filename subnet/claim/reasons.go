package claim

// Reasons of the problems that this package reports.
const (
	ReasonBadPodCIDR       = "BadPodCIDR"
	ReasonNoPodCIDR        = "NoPodCIDR" // in one family of two
	ReasonNoPublicIP       = "NoPublicIP"
	ReasonOutsideNetwork   = "PodCIDROutsideNetwork"
	ReasonBadPublicIP      = "BadPublicIP"
	ReasonBadBackendData   = "BadBackendData"
	ReasonBadBackendPort   = "BadBackendPort"
	ReasonBadBackendAlso   = "BadBackendAlso"
	ReasonOtherBackend     = "OtherBackend"
	ReasonBadAnnotation    = "BadAnnotation"
	ReasonPodCIDRConflict  = "PodCIDRConflict"
	ReasonMACConflict      = "MACConflict"
	ReasonKeyConflict      = "WireGuardKeyConflict"
	ReasonPublicIPConflict = "PublicIPConflict"
)
