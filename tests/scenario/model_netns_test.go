package scenario

import (
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/nstest"
)

func TestARandomStoryOnNamespacesEndsAsTheModelSays(t *testing.T) {
	nstest.NeedRoot(t)
	end := time.Now().Add(playtime(t))
	improvise(t, namespaces(t), seed(t), func(int) bool { return time.Now().Before(end) })
}
