package manifests

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weft-cni/weft/tests/apiserver"
)

// The labels of flannel's two manifests: the released one, and the one in its repository.
const (
	released   = "app: flannel, k8s-app: flannel"
	repository = "app: flannel"
)

// admin applies things to a real API server as an administrator would.
type admin struct {
	t       *testing.T
	kubectl string
	config  string // kubeconfig
	client  kubernetes.Interface
}

func newAdmin(t *testing.T) admin {
	t.Helper()
	kubectl := findKubectl()
	if kubectl == "" {
		t.Skip("no kubectl on this machine; make cluster builds one")
	}
	api := apiserver.Start(t)
	agents, err := os.ReadFile(api.DirectKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(config, bytes.ReplaceAll(agents, []byte(apiserver.AgentToken), []byte(apiserver.AdminToken)), 0o600); err != nil {
		t.Fatal(err)
	}
	return admin{t: t, kubectl: kubectl, config: config, client: api.Admin()}
}

func (a admin) run(args ...string) (string, error) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, a.kubectl, args...)
	cmd.Env = []string{"HOME=" + a.t.TempDir(), "KUBECONFIG=" + a.config}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (a admin) must(args ...string) {
	a.t.Helper()
	if out, err := a.run(args...); err != nil {
		a.t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
}

// flannel writes a flannel manifest with the given labels and returns its path.
func (a admin) flannel(labels string) string {
	a.t.Helper()
	data, err := os.ReadFile("testdata/flannel.yml")
	if err != nil {
		a.t.Fatal(err)
	}
	path := filepath.Join(a.t.TempDir(), "flannel.yml")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(data), "LABELS", labels)), 0o644); err != nil {
		a.t.Fatal(err)
	}
	return path
}

func (a admin) daemon() *appsv1.DaemonSet {
	a.t.Helper()
	d, err := a.client.AppsV1().DaemonSets("kube-flannel").Get(context.Background(), "kube-flannel-ds", metav1.GetOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	return d
}

func (a admin) netConf() string {
	a.t.Helper()
	cm, err := a.client.CoreV1().ConfigMaps("kube-flannel").Get(context.Background(), "kube-flannel-cfg", metav1.GetOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	return cm.Data["net-conf.json"]
}

// shape is what of a DaemonSet could be left over from the one before: names of containers, variables and volumes.
func shape(d *appsv1.DaemonSet) []string {
	var out []string
	spec := d.Spec.Template.Spec
	for _, c := range append(slices.Clone(spec.InitContainers), spec.Containers...) {
		out = append(out, "container "+c.Name+" "+c.Image+" "+strings.Join(append(c.Command, c.Args...), " "))
		for _, e := range c.Env {
			out = append(out, "env "+e.Name)
		}
	}
	for _, v := range spec.Volumes {
		out = append(out, "volume "+v.Name)
	}
	for _, x := range spec.Tolerations {
		out = append(out, "toleration "+string(x.Operator)+" "+string(x.Effect))
	}
	return out
}

func ours(t *testing.T) []string {
	d := parse(t, KubeFlannel).daemon
	return shape(&d)
}

// TestKubectlAppliesTheManifestsOverWhateverFlannelIsThere is one story on one API server, since a server takes long to start.
func TestKubectlAppliesTheManifestsOverWhateverFlannelIsThere(t *testing.T) {
	a := newAdmin(t)
	for _, chapter := range []struct {
		name string
		tell func(admin)
	}{
		{"the server takes every manifest as it is", everyManifest},
		{"over the repository's flannel the DaemonSet is deleted first", overTheRepositorys},
		{"the migration overlay leaves the ConfigMap alone", overlay},
		{"a released flannel is replaced in place, and back", inPlaceAndBack},
	} {
		// A chapter needs the ones before it, so the first failure ends the story.
		if !t.Run(chapter.name, func(t *testing.T) { b := a; b.t = t; chapter.tell(b) }) {
			return
		}
	}
}

// everyManifest: the server validates more than the types say, such as names of ports and mounts of volumes that exist.
func everyManifest(a admin) {
	a.must("apply", "-f", "base/namespace.yaml")
	for _, args := range [][]string{{"-f", "kube-flannel.yml"}, {"-k", "base"}, {"-k", "overlays/kind"}, {"-k", "overlays/migration"}, {"-k", "overlays/dual-stack"}, {"-k", "overlays/ipv6"}, {"-k", "overlays/wireguard"}, {"-f", "uninstall.yml"}, {"-f", "rollback.yml"}, {"-f", "node-guard.yml"}} {
		a.must(append([]string{"apply", "--server-side", "--dry-run=server", "--validate=strict"}, args...)...)
	}
}

// overTheRepositorys: the selector of the manifest in flannel's repository differs, and cannot change.
func overTheRepositorys(a admin) {
	a.must("apply", "-f", a.flannel(repository))
	if out, err := a.run("apply", "-f", "kube-flannel.yml"); err == nil || !strings.Contains(out, "immutable") {
		a.t.Errorf("want a refusal over the immutable selector, got %v\n%s", err, out)
	}
	a.deleteDaemon()
	a.must("apply", "-f", "kube-flannel.yml")
	if d := cmp.Diff(ours(a.t), shape(a.daemon())); d != "" {
		a.t.Errorf("DaemonSet (-manifest +live):\n%s", d)
	}
	a.deleteDaemon()
}

func overlay(a admin) {
	a.must("apply", "-f", a.flannel(released))
	want := a.netConf()
	a.must("apply", "-k", "overlays/migration")
	if d := cmp.Diff(want, a.netConf()); d != "" {
		a.t.Errorf("net-conf.json (-before +after):\n%s", d)
	}
	if d := cmp.Diff(ours(a.t), shape(a.daemon())); d != "" {
		a.t.Errorf("DaemonSet (-manifest +live):\n%s", d)
	}
	a.deleteDaemon()
}

func inPlaceAndBack(a admin) {
	flannel := a.flannel(released)
	a.must("apply", "-f", flannel)
	before := a.daemon()
	a.must("apply", "-f", "kube-flannel.yml")
	after := a.daemon()
	if before.UID != after.UID {
		a.t.Error("the DaemonSet was not replaced in place")
	}
	if d := cmp.Diff(ours(a.t), shape(after)); d != "" {
		a.t.Errorf("something of flannel is left (-manifest +live):\n%s", d)
	}
	role, err := a.client.RbacV1().ClusterRoles().Get(context.Background(), "flannel", metav1.GetOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	if d := cmp.Diff(parse(a.t, KubeFlannel).role.Rules, role.Rules); d != "" {
		a.t.Errorf("rules of the role (-manifest +live):\n%s", d)
	}
	conf := a.netConf()
	a.must("apply", "-f", "rollback.yml")
	back := a.daemon()
	if init := back.Spec.Template.Spec.InitContainers; before.UID != back.UID || len(init) != 1 || !slices.Contains(init[0].Args, "--keep-dataplane") {
		a.t.Errorf("the rollback does not take the agent's place: %v", shape(back))
	}
	if d := cmp.Diff(conf, a.netConf()); d != "" {
		a.t.Errorf("the rollback changes net-conf.json:\n%s", d)
	}
	a.must("apply", "-f", flannel)
	if d := cmp.Diff(shape(before), shape(a.daemon())); d != "" {
		a.t.Errorf("the way back leaves something of ours (-flannel +live):\n%s", d)
	}
}

// deleteDaemon is the step that docs/migration.md tells people to do.
func (a admin) deleteDaemon() {
	a.t.Helper()
	a.must("-n", "kube-flannel", "delete", "daemonset", "kube-flannel-ds")
}
