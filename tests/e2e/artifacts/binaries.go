package artifacts

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
)

// The versions that the cluster announces. Those of the modules are in their go.mod; these are the names kubeadm of this
// version asks for, so they move together with modules/kubernetes/go.mod.
const (
	KubernetesVersion = "v1.37.2"
	PauseImage        = "registry.k8s.io/pause:3.10.2"
	EtcdImage         = "registry.k8s.io/etcd:3.7.0-0"
	CoreDNSImage      = "registry.k8s.io/coredns/coredns:v1.14.6"
)

// Binaries are the folders that hold the programs of a cluster.
type Binaries struct {
	Kubernetes string // kubeadm kubelet kubectl kube-* agnhost
	Etcd       string // etcd
	Containerd string // containerd ctr containerd-shim-runc-v2
	Runc       string // runc
	CRITools   string // crictl
	Plugins    string // what a kind node has in /opt/cni/bin: host-local loopback portmap ptp
	CoreDNS    string // coredns
	Pause      string // pause
	Own        string // node, probe: the programs of this module
}

// KubernetesModule is Kubernetes, kubectl and agnhost.
func KubernetesModule() Module {
	version := ""
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		version += fmt.Sprintf(" -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=37 -X %[1]s.gitTreeState=clean", pkg, KubernetesVersion)
	}
	const k8s = "k8s.io/kubernetes/"
	return Module{
		Name:    "kubernetes",
		LDFlags: version,
		Packages: []string{
			k8s + "cmd/kube-apiserver", k8s + "cmd/kube-controller-manager", k8s + "cmd/kube-scheduler", k8s + "cmd/kubelet",
			k8s + "cmd/kubeadm", k8s + "cmd/kube-proxy", "./kubectl", k8s + "test/images/agnhost",
		},
	}
}

// BuildBinaries builds all that a cluster needs, or finds it in the cache.
func BuildBinaries(ctx context.Context, cache Cache, source string, progress Progress) (Binaries, error) {
	var b Binaries
	const cd, cni = "github.com/containerd/containerd/v2/cmd/", "github.com/containernetworking/plugins/plugins/"
	modules := []struct {
		into   *string
		module Module
	}{
		{&b.Kubernetes, KubernetesModule()},
		{&b.Etcd, Module{Name: "etcd", Packages: []string{"./etcd"}}},
		{&b.Containerd, Module{Name: "containerd", Packages: []string{cd + "containerd", cd + "ctr", cd + "containerd-shim-runc-v2"}}},
		{&b.Runc, Module{Name: "runc", Packages: []string{"github.com/opencontainers/runc"}, Tags: "seccomp", Cgo: true}},
		{&b.CRITools, Module{Name: "critools", Packages: []string{"sigs.k8s.io/cri-tools/cmd/crictl"}}},
		{&b.Plugins, Module{Name: "plugins", Packages: []string{cni + "ipam/host-local", cni + "main/loopback", cni + "main/ptp", cni + "meta/portmap"}}},
		{&b.CoreDNS, Module{Name: "coredns", Packages: []string{"github.com/coredns/coredns"}}},
	}
	for _, m := range modules {
		dir, err := m.module.Build(ctx, cache, source, progress)
		if err != nil {
			return Binaries{}, err
		}
		*m.into = dir
	}
	var err error
	if b.Pause, err = buildPause(ctx, cache, source); err != nil {
		return Binaries{}, err
	}
	b.Own, err = buildOwn(ctx, cache, source)
	return b, err
}

// buildPause compiles the program that holds a pod's namespaces open, from the C file Kubernetes ships.
func buildPause(ctx context.Context, cache Cache, source string) (string, error) {
	return cache.Make("bin", "pause", Key(KubernetesVersion, runtime.GOARCH), func(tmp string) error {
		src, err := KubernetesModule().Dir(ctx, source, "k8s.io/kubernetes")
		if err != nil {
			return err
		}
		_, err = Command{Args: []string{"install", "-d", tmp}}.Run(ctx)
		if err != nil {
			return err
		}
		_, err = Command{Args: []string{
			"gcc", "-Os", "-static", "-DVERSION=3.10.2", "-o", filepath.Join(tmp, "pause"), filepath.Join(src, "build/pause/linux/pause.c"),
		}}.Run(ctx)
		return err
	})
}

// OwnPrograms is the folder of this module's own programs.
func (c Cache) OwnPrograms() string { return filepath.Join(c.Dir, "bin", "own") }

// buildOwn compiles the programs of this module anew at each start: Go's own cache makes that a matter of a second.
func buildOwn(ctx context.Context, cache Cache, source string) (string, error) {
	dir := cache.OwnPrograms()
	_, err := Command{
		Dir:  source,
		Env:  []string{"CGO_ENABLED=0"},
		Args: []string{"go", "build", "-trimpath", "-buildvcs=false", "-o", dir + "/", "./cmd/node", "./cmd/probe", "./cmd/sctp"},
	}.Run(ctx)
	return dir, err
}
