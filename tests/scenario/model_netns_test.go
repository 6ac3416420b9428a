package scenario

import (
	"testing"

	"github.com/weft-cni/weft/tests/nstest"
)

func TestARandomStoryOnNamespacesEndsAsTheModelSays(t *testing.T) {
	t.Parallel()
	nstest.NeedRoot(t)
	improvise(t, namespaces(t), seed(t), bound(t))
}
