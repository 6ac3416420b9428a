package scenario

import (
	"testing"

	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

// Stories on namespaces wait more than they compute, and each has its own: some are told at a time.
func TestStoriesOnNamespaces(t *testing.T) {
	t.Parallel()
	nstest.NeedRoot(t)
	for name, a := range stories(t) {
		if !playsOn(a, "namespaces") || !playsIn(a, lane.Of(t)) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tell(t, a, namespaces(t))
		})
	}
}
