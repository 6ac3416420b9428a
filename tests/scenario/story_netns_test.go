package scenario

import (
	"testing"

	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

func TestStoriesOnNamespaces(t *testing.T) {
	nstest.NeedRoot(t)
	for name, a := range stories(t) {
		if !playsOn(a, "namespaces") || !playsIn(a, lane.Of(t)) {
			continue
		}
		t.Run(name, func(t *testing.T) { tell(t, a, namespaces(t)) })
	}
}
