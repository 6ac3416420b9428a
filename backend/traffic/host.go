package traffic

import "github.com/weft-cni/weft/backend/netfilter"

// host is where to work, and what is asked about it here.
type host struct{ netfilter.Host }
