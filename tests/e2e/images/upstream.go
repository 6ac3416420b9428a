package images

import (
	"context"
	"path/filepath"

	"github.com/weft-cni/weft/tests/e2e/artifacts"
)

// Upstream writes the one image that stands in for all that Kubernetes' own network specs pull: the tools, with a name
// server, getent and a firewall's programs, under each of the names. It is large, so only a cluster that runs them gets it.
func Upstream(ctx context.Context, cache artifacts.Cache, b artifacts.Binaries, progress artifacts.Progress) (string, error) {
	image, err := toolsImage(b)
	if err != nil {
		return "", err
	}
	const registry = "registry.k8s.io/e2e-test-images/"
	image.Name = registry + "agnhost:2.66.1"
	image.Aliases = []string{
		registry + "busybox:1.37.0-2", registry + "glibc-dns-testing:2.1.1", "registry.k8s.io/build-image/distroless-iptables:v0.9.9",
	}
	image.Tree.Add(filepath.Join(b.CoreDNS, "coredns"), "/coredns")
	if err := image.Tree.AddProgram("/usr/bin/getent"); err != nil {
		return "", err
	}
	if err := addFirewall(&image.Tree); err != nil {
		return "", err
	}
	return image.cached(ctx, cache, progress)
}
