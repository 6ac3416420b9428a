package scenario

import (
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/nstest"
)

func TestARandomStoryOfRealDaemonsEndsAsTheModelSays(t *testing.T) {
	nstest.NeedRoot(t)
	api := apiserver.Start(t)
	f := processes(t, api, build(t))
	end := time.Now().Add(playtime(t))
	improvise(t, f, seed(t), func(int) bool { return time.Now().Before(end) })
}
