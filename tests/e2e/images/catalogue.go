package images

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weft-cni/weft/tests/e2e/artifacts"
)

// Tools is the image that test pods run: agnhost with a shell, ping, curl, dig, iperf3 and this module's probe.
const Tools = "localhost/agnhost:dev"

// Set is the archives of a cluster's images.
type Set struct {
	Everywhere   []string // each node runs these
	ControlPlane []string // only the first node runs these
}

// Build writes the archives of all images, or finds them in the cache.
func Build(ctx context.Context, cache artifacts.Cache, b artifacts.Binaries, progress artifacts.Progress) (Set, error) {
	var set Set
	tools, err := toolsImage(b)
	if err != nil {
		return Set{}, err
	}
	proxy, err := kubeProxyImage(b)
	if err != nil {
		return Set{}, err
	}
	for _, image := range []*Image{pauseImage(b), proxy, tools, coreDNSImage(b)} {
		file, err := image.cached(ctx, cache, progress)
		if err != nil {
			return Set{}, err
		}
		set.Everywhere = append(set.Everywhere, file)
	}
	for _, image := range controlPlaneImages(b) {
		file, err := image.cached(ctx, cache, progress)
		if err != nil {
			return Set{}, err
		}
		set.ControlPlane = append(set.ControlPlane, file)
	}
	return set, nil
}

func pauseImage(b artifacts.Binaries) *Image {
	image := &Image{Name: artifacts.PauseImage, Entrypoint: []string{"/pause"}}
	image.Tree.Add(filepath.Join(b.Pause, "pause"), "/pause")
	return image
}

// coreDNSImage is everywhere, since the scheduler may put it anywhere.
func coreDNSImage(b artifacts.Binaries) *Image {
	image := &Image{Name: artifacts.CoreDNSImage, Entrypoint: []string{"/coredns"}}
	image.Tree.Add(filepath.Join(b.CoreDNS, "coredns"), "/coredns")
	return image
}

func controlPlaneImages(b artifacts.Binaries) []*Image {
	etcd := &Image{Name: artifacts.EtcdImage}
	etcd.Tree.Add(filepath.Join(b.Etcd, "etcd"), "/usr/local/bin/etcd")
	all := []*Image{etcd}
	for _, program := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		image := &Image{Name: "registry.k8s.io/" + program + ":" + artifacts.KubernetesVersion}
		image.Tree.Add(filepath.Join(b.Kubernetes, program), "/usr/local/bin/"+program)
		all = append(all, image)
	}
	return all
}

// kubeProxyImage holds both engines of kube-proxy: iptables (on nf_tables) with its modules, and nft.
func kubeProxyImage(b artifacts.Binaries) (*Image, error) {
	image := &Image{Name: "registry.k8s.io/kube-proxy:" + artifacts.KubernetesVersion}
	image.Tree.Add(filepath.Join(b.Kubernetes, "kube-proxy"), "/usr/local/bin/kube-proxy")
	image.Tree.Folder("/run", 0o755)
	image.Tree.Folder("/tmp", 0o1777)
	return image, addFirewall(&image.Tree)
}

// addFirewall adds both engines: iptables (on nf_tables) with its modules, and nft.
func addFirewall(tree *Tree) error {
	for _, program := range []string{"/usr/sbin/xtables-nft-multi", "/usr/sbin/nft", "/usr/sbin/conntrack", "/usr/sbin/ipset", "/usr/bin/kmod"} {
		if err := tree.AddProgram(program); err != nil {
			return err
		}
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			tree.Link("/usr/sbin/"+family+verb, "xtables-nft-multi")
		}
	}
	modules, err := filepath.Glob("/usr/lib/*/xtables")
	if err != nil {
		return fmt.Errorf("find the xtables modules: %w", err)
	}
	for _, dir := range modules {
		if err := tree.AddFolder(dir); err != nil {
			return err
		}
	}
	return nil
}

// cached writes the image's archive unless one of the same files is in the cache.
func (i *Image) cached(ctx context.Context, cache artifacts.Cache, progress artifacts.Progress) (string, error) {
	key, err := i.key()
	if err != nil {
		return "", err
	}
	return cache.Make("images", filepath.Base(i.Name), key, func(tmp string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return progress.Step("write image "+i.Name, func() error { return i.WriteArchive(tmp) })
	})
}

// key is made of the names and contents of the files. Reading the large ones would take longer than writing the image, so
// of those the time stands for the content; the module's own small programs are linked anew at each start and keep theirs.
func (i *Image) key() (string, error) {
	inputs := append([]string{i.Name}, i.Aliases...)
	inputs = append(append(inputs, i.Entrypoint...), i.Cmd...)
	for _, name := range i.Tree.names() {
		e := i.Tree.entries[name]
		inputs = append(inputs, name, e.text, e.link)
		if e.from == "" {
			continue
		}
		stamp, err := fingerprint(e.from)
		if err != nil {
			return "", fmt.Errorf("look at %s: %w", e.from, err)
		}
		inputs = append(inputs, stamp)
	}
	return artifacts.Key(inputs...), nil
}

func fingerprint(file string) (string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	if info.Size() > 16<<20 {
		return info.ModTime().String(), nil
	}
	text, err := os.ReadFile(file)
	return string(text), err
}
