package scenario

import (
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/nstest"
)

func TestStoriesOfRealDaemons(t *testing.T) {
	nstest.NeedRoot(t)
	api, program := apiserver.Start(t), build(t)
	for name, a := range stories(t) {
		if !playsOn(a, "daemons") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			api.Proxy.Open() // the story before may have left it closed
			tell(t, a, processes(t, api, program))
		})
	}
}

func TestARandomStoryOfRealDaemonsEndsAsTheModelSays(t *testing.T) {
	nstest.NeedRoot(t)
	f := processes(t, apiserver.Start(t), build(t))
	end := time.Now().Add(playtime(t))
	improvise(t, f, seed(t), func(int) bool { return time.Now().Before(end) })
}
