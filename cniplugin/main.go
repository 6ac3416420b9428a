// Command flannel is the CNI plugin of the overlay: it turns a few words of configuration and the node's subnet.env into
// the configuration of a delegate (bridge with host-local, unless told otherwise), runs it, and remembers what it ran.
// It keeps flannel's name, files and texts, so that a runtime set up for flannel finds it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
)

// Set by the build: -ldflags "-X main.release=v0.1.0 -X main.commit=...".
var (
	release = "dev"
	commit  = "unknown"
)

func main() {
	// One thing happens after the other here, and then a wait for the delegate. More processors only make the runtime
	// wake threads that find nothing to do, which on a busy node costs milliseconds.
	runtime.GOMAXPROCS(1)
	ctx, stop := context.WithCancel(context.Background())
	p := newPlugin(ctx)
	p.idle = sync.OnceFunc(func() { listen(stop) })
	e := skel.PluginMainFuncsWithError(p.verbs(), versions(), about())
	if e == nil {
		return
	}
	if err := e.Print(); err != nil {
		log.Print("print the error: ", err)
	}
	os.Exit(1)
}

// listen lets signals end what is under way. It costs a pod a quarter of a millisecond, and so is done when there is nothing
// to do but to wait for a delegate. Before that a signal simply ends the plugin, which has made nothing then that DEL would
// not find.
func listen(stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		stop()
	}()
}

// versions are those of the specification that have ever been released.
func versions() version.PluginInfo {
	return version.PluginSupports("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
}

// about is what the plugin says of itself when it is called without a verb.
func about() string {
	return fmt.Sprintf("CNI Plugin flannel version %s (%s/%s) commit %s", release, runtime.GOOS, runtime.GOARCH, commit)
}
