package reliability

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

// root is the top of the repository, as tests of this package see it.
const root = "../.."

// Site is what all benches of a run share: an API server and the programs.
type Site struct {
	API     *apiserver.API
	Client  *kubernetes.Clientset // the administrator's, past the proxy
	Daemon  string                // flanneld, as `go build` makes it
	Lane    lane.Lane             // the families of its clusters
	Plugins string                // a folder with the CNI shim and the standard plugins: what the image has in /opt/weft/cni
}

// NewSite starts an API server and builds the programs; it skips the test where there is no API server to be had.
func NewSite(t testing.TB) *Site {
	t.Helper()
	nstest.NeedRoot(t)
	s := &Site{API: apiserver.Start(t), Lane: lane.Of(t)}
	s.Client = s.API.Admin()
	if err := apiserver.Permit(s.Client, filepath.Join(root, "manifests/kube-flannel.yml")); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s.Daemon, s.Plugins = filepath.Join(dir, "flanneld"), filepath.Join(dir, "cni")
	const standard = "github.com/containernetworking/plugins/plugins/"
	for _, build := range [][]string{
		{s.Daemon, "."},
		{filepath.Join(s.Plugins, "flannel"), "./cniplugin"},
		{s.Plugins + "/", standard + "main/bridge", standard + "ipam/host-local", standard + "meta/portmap", standard + "meta/bandwidth"},
	} {
		if err := compile(build[0], build[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// compile builds packages of the repository's module as the Makefile does.
func compile(out string, packages ...string) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	cmd := exec.Command("go", append([]string{"build", "-ldflags=-s -w", "-o", out}, packages...)...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %v: %w: %s", packages, err, text)
	}
	return nil
}
