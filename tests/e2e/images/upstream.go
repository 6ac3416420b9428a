package images

import (
	"context"
	"path/filepath"

	"github.com/weft-cni/weft/tests/e2e/artifacts"
)

// Extra is what Upstream needs besides the binaries of every cluster.
type Extra struct {
	Source   string // of Kubernetes: a certificate lies there
	Programs string // the folder that artifacts.BuildSuite filled
}

// Upstream writes the images that stand in for all that Kubernetes' own network specs pull: the tools, with a name server,
// getent and a firewall's programs, under each of the names, and one server. They are large, so only a cluster that runs the
// specs gets them.
func Upstream(ctx context.Context, cache artifacts.Cache, b artifacts.Binaries, extra Extra, progress artifacts.Progress) ([]string, error) {
	tools, err := upstreamTools(b, extra)
	if err != nil {
		return nil, err
	}
	server := &Image{Name: upstreamRegistry + artifacts.ConntrackServer + ":1.5", Entrypoint: []string{"/" + artifacts.ConntrackServer}}
	server.Tree.Add(filepath.Join(extra.Programs, artifacts.ConntrackServer), "/"+artifacts.ConntrackServer)
	var archives []string
	for _, image := range []*Image{tools, server} {
		archive, err := image.cached(ctx, cache, progress)
		if err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

const upstreamRegistry = "registry.k8s.io/e2e-test-images/"

func upstreamTools(b artifacts.Binaries, extra Extra) (*Image, error) {
	image, err := toolsImage(b)
	if err != nil {
		return nil, err
	}
	image.Name = upstreamRegistry + "agnhost:2.66.1"
	image.Aliases = []string{
		upstreamRegistry + "busybox:1.37.0-2", upstreamRegistry + "glibc-dns-testing:2.1.1",
		"registry.k8s.io/build-image/distroless-iptables:v0.9.9",
	}
	image.Tree.Add(filepath.Join(b.CoreDNS, "coredns"), "/coredns")
	for _, file := range []string{"localhost.crt", "localhost.key"} {
		image.Tree.Add(filepath.Join(extra.Source, "test/images/agnhost/porter", file), "/"+file)
	}
	if err := image.Tree.AddProgram("/usr/bin/getent"); err != nil {
		return nil, err
	}
	addSCTP(image, b)
	return image, addFirewall(&image.Tree)
}

// SCTPTools is the image of tools whose agnhost speaks SCTP where the kernel has no sockets for it.
const SCTPTools = "localhost/agnhost-sctp:dev"

// SCTP writes the archive of SCTPTools.
func SCTP(ctx context.Context, cache artifacts.Cache, b artifacts.Binaries, progress artifacts.Progress) (string, error) {
	image, err := toolsImage(b)
	if err != nil {
		return "", err
	}
	image.Name = SCTPTools
	addSCTP(image, b)
	return image.cached(ctx, cache, progress)
}

// addSCTP puts cmd/sctp in agnhost's place.
func addSCTP(image *Image, b artifacts.Binaries) {
	image.Tree.Add(filepath.Join(b.Kubernetes, "agnhost"), "/agnhost.real")
	image.Tree.Add(filepath.Join(b.Own, "sctp"), "/agnhost")
}
