package manifests

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/subnet"
)

var update = flag.Bool("update", false, "write kube-flannel.yml from base")

// objects are the parts of a manifest, parsed strictly: a key that the API does not know is an error.
type objects struct {
	kinds     []string // kind/name in order
	namespace corev1.Namespace
	role      rbacv1.ClusterRole
	binding   rbacv1.ClusterRoleBinding
	account   corev1.ServiceAccount
	config    corev1.ConfigMap
	daemon    appsv1.DaemonSet
}

func parse(t *testing.T, text string) objects {
	t.Helper()
	var o objects
	for _, doc := range strings.Split(text, "\n---\n") {
		var meta struct {
			metav1.TypeMeta   `json:",inline"`
			metav1.ObjectMeta `json:"metadata"`
		}
		if err := yaml.Unmarshal([]byte(doc), &meta); err != nil {
			t.Fatal(err)
		}
		into := map[string]any{
			"Namespace": &o.namespace, "ClusterRole": &o.role, "ClusterRoleBinding": &o.binding,
			"ServiceAccount": &o.account, "ConfigMap": &o.config, "DaemonSet": &o.daemon,
		}[meta.Kind]
		if into == nil {
			t.Fatalf("unexpected kind %q", meta.Kind)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
			t.Fatalf("%s %s: %v", meta.Kind, meta.Name, err)
		}
		o.kinds = append(o.kinds, meta.Kind+"/"+meta.Name)
	}
	return o
}

func TestTheManifestIsTheBaseInOneFile(t *testing.T) {
	var list struct{ Resources []string }
	data, err := os.ReadFile("base/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, r := range list.Resources {
		part, err := os.ReadFile(filepath.Join("base", r))
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, string(part))
	}
	want := strings.Join(parts, "---\n")
	if *update {
		if err := os.WriteFile("kube-flannel.yml", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(want, KubeFlannel); d != "" {
		t.Errorf("run go test ./manifests -update (-base +manifest):\n%s", d)
	}
}

func TestNamesAreThoseOfFlannelSoThatItIsReplacedInPlace(t *testing.T) {
	o := parse(t, KubeFlannel)
	want := []string{
		"Namespace/kube-flannel", "ServiceAccount/flannel", "ClusterRole/flannel", "ClusterRoleBinding/flannel",
		"ConfigMap/kube-flannel-cfg", "DaemonSet/kube-flannel-ds",
	}
	if d := cmp.Diff(want, o.kinds); d != "" {
		t.Errorf("objects (-want +got):\n%s", d)
	}
	// The selector of a DaemonSet cannot change: these are the labels of flannel's released manifest.
	labels := map[string]string{"app": "flannel", "k8s-app": "flannel"}
	if d := cmp.Diff(labels, o.daemon.Spec.Selector.MatchLabels); d != "" {
		t.Errorf("selector (-want +got):\n%s", d)
	}
	for k, v := range labels {
		if o.daemon.Spec.Template.Labels[k] != v {
			t.Errorf("the pods lack the label %s=%s", k, v)
		}
	}
	if d := cmp.Diff([]rbacv1.Subject{{Kind: "ServiceAccount", Name: "flannel", Namespace: "kube-flannel"}}, o.binding.Subjects); d != "" {
		t.Errorf("subjects (-want +got):\n%s", d)
	}
}

// The ClusterRole grants what the sources ask for, no more and no less. Reading the own Pod is left out: it finds the node's
// name where NODE_NAME is missing, under flannel's manifest, whose role allows it.
func TestTheRoleGrantsTheVerbsThatTheCodeUses(t *testing.T) {
	var want []string
	for _, dir := range []string{"../subnet/kube", "../backend/daemon", "../backend/policy/watch"} {
		want = append(want, requests(t, dir)...)
	}
	// Asked through clients whose methods do not name what they ask for; the watch's test on a real API server needs them.
	for _, resource := range []string{"apiextensions.k8s.io/customresourcedefinitions", "policy.networking.k8s.io/clusternetworkpolicies"} {
		want = append(want, resource+" list", resource+" watch")
	}
	slices.Sort(want)
	want = slices.DeleteFunc(slices.Compact(want), func(s string) bool { return s == "pods get" })
	var got []string
	for _, r := range parse(t, KubeFlannel).role.Rules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					got = append(got, strings.TrimPrefix(group+"/"+resource, "/")+" "+verb)
				}
			}
		}
	}
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("verbs (-code +manifest):\n%s", d)
	}
}

func TestWhatIsAskedForByNameIsGrantedByNameOnly(t *testing.T) {
	want := map[string][]string{
		"namespaces get": {"kube-system"}, "customresourcedefinitions list": {"clusternetworkpolicies.policy.networking.k8s.io"},
		"customresourcedefinitions watch": {"clusternetworkpolicies.policy.networking.k8s.io"},
	}
	got := map[string][]string{}
	for _, r := range parse(t, KubeFlannel).role.Rules {
		for _, resource := range r.Resources {
			for _, verb := range r.Verbs {
				if len(r.ResourceNames) > 0 {
					got[resource+" "+verb] = r.ResourceNames
				}
			}
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("resourceNames (-want +got):\n%s", d)
	}
}

// The definition is the API project's own, of the channel that has all that is enforced here: peers by node and ports by
// name are experimental there.
func TestTheClusterNetworkPolicyDefinitionIsThatOfTheAPI(t *testing.T) {
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const file = "clusternetworkpolicy.yml"
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != string(got) {
		t.Errorf("%s is not what the module has: run go test ./manifests -update", file)
	}
}

// K-02: Pod Security would refuse the pods in a namespace that is not privileged.
func TestK02TheNamespaceIsPrivileged(t *testing.T) {
	if got := parse(t, KubeFlannel).namespace.Labels["pod-security.kubernetes.io/enforce"]; got != "privileged" {
		t.Errorf("pod-security enforce is %q", got)
	}
}

// K-05, K-14: no taint keeps the agent away or evicts it, node.cloudprovider.kubernetes.io/uninitialized included.
func TestK05K14EveryTaintIsTolerated(t *testing.T) {
	spec := parse(t, KubeFlannel).daemon.Spec.Template.Spec
	want := []corev1.Toleration{
		{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	}
	if d := cmp.Diff(want, spec.Tolerations); d != "" {
		t.Errorf("tolerations (-want +got):\n%s", d)
	}
	if d := cmp.Diff("system-node-critical", spec.PriorityClassName); d != "" {
		t.Error(d)
	}
}

// K-06: a limit that is too small for a large cluster kills the agent half-way.
func TestK06ThereAreRequestsAndNoLimits(t *testing.T) {
	for _, c := range containers(parse(t, KubeFlannel)) {
		if len(c.Resources.Limits) > 0 || len(c.Resources.Requests) != 2 {
			t.Errorf("%s: resources %v", c.Name, c.Resources)
		}
	}
}

// NET_ADMIN and NET_RAW, nothing else; the tests on the real cluster prove that they are enough.
func TestX06PrivilegesAreTheLeast(t *testing.T) {
	o := parse(t, KubeFlannel)
	spec := o.daemon.Spec.Template.Spec
	if spec.HostPID || spec.HostIPC || !spec.HostNetwork {
		t.Errorf("hostPID %t, hostIPC %t, hostNetwork %t", spec.HostPID, spec.HostIPC, spec.HostNetwork)
	}
	if spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Error("seccomp is not RuntimeDefault")
	}
	added := map[string][]corev1.Capability{"kube-flannel": {"NET_ADMIN", "NET_RAW"}}
	for _, c := range containers(o) {
		s := c.SecurityContext
		if *s.Privileged || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem {
			t.Errorf("%s: privileged %t, escalation %t, read-only root %t", c.Name, *s.Privileged, *s.AllowPrivilegeEscalation, *s.ReadOnlyRootFilesystem)
		}
		want := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: added[c.Name]}
		if d := cmp.Diff(want, s.Capabilities); d != "" {
			t.Errorf("%s: capabilities (-want +got):\n%s", c.Name, d)
		}
	}
}

func TestTheAgentIsStartedProbedAndRolledOutAsDocumented(t *testing.T) {
	o := parse(t, KubeFlannel)
	c := o.daemon.Spec.Template.Spec.Containers[0]
	if d := cmp.Diff([]string{"/opt/bin/flanneld", "--ip-masq", "--kube-subnet-mgr", "--healthz-port=8081"}, append(slices.Clone(c.Command), c.Args...)); d != "" {
		t.Errorf("command (-want +got):\n%s", d)
	}
	if c.LivenessProbe.HTTPGet.Path != "/healthz" || c.ReadinessProbe.HTTPGet.Path != "/readyz" {
		t.Errorf("probes: %s, %s", c.LivenessProbe.HTTPGet.Path, c.ReadinessProbe.HTTPGet.Path)
	}
	if c.Env[0].Name != "NODE_NAME" || c.Env[0].ValueFrom.FieldRef.FieldPath != "spec.nodeName" {
		t.Errorf("env: %v", c.Env)
	}
	if got := o.daemon.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue(); got != 1 {
		t.Errorf("maxUnavailable is %d", got)
	}
	init := o.daemon.Spec.Template.Spec.InitContainers
	if len(init) != 1 || init[0].Image != c.Image || init[0].Args[0] != "install-cni" {
		t.Errorf("init containers: %v", init)
	}
}

func TestTheImageIsTheOneThatTheMakefileBuilds(t *testing.T) {
	data, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^VERSION\s+\?= (\S+)$`).FindSubmatch(data)
	for _, c := range containers(parse(t, KubeFlannel)) {
		if d := cmp.Diff("ghcr.io/weft-cni/weft:"+string(version[1]), c.Image); d != "" {
			t.Errorf("%s: image (-makefile +manifest):\n%s", c.Name, d)
		}
	}
}

func TestTheMountsAreThoseThatTheAgentReadsAndWrites(t *testing.T) {
	o := parse(t, KubeFlannel)
	source := map[string]string{}
	for _, v := range o.daemon.Spec.Template.Spec.Volumes {
		if v.HostPath != nil {
			source[v.Name] = v.HostPath.Path
		}
	}
	want := map[string]string{
		"/run/flannel": "/run/flannel", "/etc/kube-flannel": "", "/opt/cni/bin": "/opt/cni/bin", "/etc/cni/net.d": "/etc/cni/net.d",
		"/var/lib/cni": "/var/lib/cni", "/var/lib/weft": "/var/lib/weft", "/run/netns": "/run/netns",
		"/run/xtables.lock": "/run/xtables.lock", "/host/proc/sys/net": "/proc/sys/net",
	}
	got := map[string]string{}
	for _, m := range o.daemon.Spec.Template.Spec.Containers[0].VolumeMounts {
		got[m.MountPath] = source[m.Name]
		if ro := m.ReadOnly; ro != (m.Name == "netns" || m.Name == "flannel-cfg") {
			t.Errorf("%s: read-only is %t", m.Name, ro)
		}
		if m.Name == "netns" && *m.MountPropagation != corev1.MountPropagationHostToContainer {
			t.Error("pods that start later would not be seen")
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("mounts (-want +got):\n%s", d)
	}
}

func TestTheConfigMapIsWhatTheAgentTakes(t *testing.T) {
	data := parse(t, KubeFlannel).config.Data
	if d := cmp.Diff(install.Builtin, data["cni-conf.json"]); d != "" {
		t.Errorf("cni-conf.json (-builtin +manifest):\n%s", d)
	}
	conf, warnings, err := subnet.ParseNetConf([]byte(data["net-conf.json"]))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("net-conf.json: %v, %v", warnings, err)
	}
	if conf.Networks[subnet.IPv4].String() != "10.244.0.0/16" || conf.Backend.Port != 0 {
		t.Errorf("net-conf.json: %+v; want 10.244.0.0/16 and no port (4789 on a new cluster, the old one's on an old one)", conf)
	}
}

// The overlays are rendered by the kubectl of the test cluster when it has been built, else by the one of this machine.
func TestOverlaysRenderToObjectsThatTheAPITakes(t *testing.T) {
	kubectl := findKubectl()
	if kubectl == "" {
		t.Skip("no kubectl on this machine; make cluster builds one")
	}
	render := func(dir string) objects {
		t.Helper()
		out, err := exec.CommandContext(context.Background(), kubectl, "kustomize", dir).Output()
		if err != nil {
			t.Fatalf("kubectl kustomize %s: %v", dir, err)
		}
		return parse(t, string(out))
	}
	base := parse(t, KubeFlannel)
	if d := cmp.Diff(base.daemon, render("base").daemon); d != "" {
		t.Errorf("base (-manifest +rendered):\n%s", d)
	}
	migration := render("overlays/migration")
	if len(migration.kinds) != len(base.kinds)-1 || migration.config.Name != "" {
		t.Errorf("migration: want everything but the ConfigMap, got %v", migration.kinds)
	}
	// K-09: nodes of kind come back from a restart with swapped addresses.
	kind := containers(render("overlays/kind"))
	for _, c := range kind {
		if c.ImagePullPolicy != corev1.PullNever {
			t.Errorf("kind: %s is pulled", c.Name)
		}
	}
	if args := kind[len(kind)-1].Args; !slices.Contains(args, "--iface-from=internal-ip") {
		t.Errorf("kind: arguments %v do not follow the node's address", args)
	}
	for name, want := range map[string]subnet.NetConf{
		"dual-stack": {Enabled: [2]bool{true, true}, Backend: subnet.Backend{Type: subnet.VXLAN}},
		"ipv6":       {Enabled: [2]bool{false, true}, Backend: subnet.Backend{Type: subnet.VXLAN}},
		"wireguard":  {Enabled: [2]bool{true, false}, Backend: subnet.Backend{Type: subnet.WireGuard}},
	} {
		got := render("overlays/" + name)
		conf, warnings, err := subnet.ParseNetConf([]byte(got.config.Data["net-conf.json"]))
		if err != nil || len(warnings) > 0 || conf.Enabled != want.Enabled || conf.Backend.Type != want.Backend.Type {
			t.Errorf("%s: %v, %v, %+v", name, err, warnings, conf)
		}
		if got.config.Data["cni-conf.json"] == "" {
			t.Errorf("%s: the chain of plugins is lost", name)
		}
	}
}

// K-09, C-12: a node image of kind has host-local, loopback, portmap and ptp, and nothing is downloaded.
func TestK09TheImageShipsEveryPluginThatTheChainStarts(t *testing.T) {
	data, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var shipped []string
	for _, p := range strings.Fields(string(regexp.MustCompile(`(?m)^PLUGINS\s+:= (.+)$`).FindSubmatch(data)[1])) {
		shipped = append(shipped, filepath.Base(p))
	}
	want := []string{"bridge", "loopback", "host-local", "portmap", "bandwidth", "tuning", "firewall"}
	if d := cmp.Diff(want, shipped); d != "" {
		t.Errorf("plugins (-want +makefile):\n%s", d)
	}
	var chain struct{ Plugins []struct{ Type string } }
	if err := yaml.Unmarshal([]byte(install.Builtin), &chain); err != nil {
		t.Fatal(err)
	}
	for _, p := range chain.Plugins {
		if p.Type != install.Shim && !slices.Contains(shipped, p.Type) {
			t.Errorf("the chain starts %s, which the image does not ship", p.Type)
		}
	}
}

func findKubectl() string {
	cache := os.Getenv("WEFT_CACHE")
	if dir, err := os.UserCacheDir(); cache == "" && err == nil {
		cache = filepath.Join(dir, "weft")
	}
	for _, pattern := range []string{"bin/kubectl*", "bin/*/kubectl", "*/kubectl"} {
		for _, f := range glob(filepath.Join(cache, pattern)) {
			if exec.Command(f, "version", "--client").Run() == nil {
				return f
			}
		}
	}
	path, _ := exec.LookPath("kubectl")
	return path
}

func glob(pattern string) []string {
	files, _ := filepath.Glob(pattern)
	return files
}

func containers(o objects) []corev1.Container {
	return append(slices.Clone(o.daemon.Spec.Template.Spec.InitContainers), o.daemon.Spec.Template.Spec.Containers...)
}

// The uninstall and the way back to flannel reach what the agent reaches, with the same rights, on the same nodes.
func TestK07TheUninstallAndTheRollbackReachWhatTheAgentWrote(t *testing.T) {
	for file, command := range map[string][]string{
		"uninstall.yml": {"/opt/bin/flanneld", "uninstall"}, "rollback.yml": {"/opt/bin/flanneld", "uninstall", "--keep-dataplane"},
	} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		agent, gone := parse(t, KubeFlannel).daemon.Spec.Template.Spec, parse(t, string(data)).daemon.Spec.Template.Spec
		from, to := agent.Containers[0], gone.InitContainers[0]
		for what, d := range map[string]string{
			"volumes":          cmp.Diff(agent.Volumes, gone.Volumes),
			"mounts":           cmp.Diff(from.VolumeMounts, to.VolumeMounts),
			"security context": cmp.Diff(from.SecurityContext, to.SecurityContext),
			"image":            cmp.Diff(from.Image, to.Image),
			"environment":      cmp.Diff(from.Env, to.Env),
			"tolerations":      cmp.Diff(agent.Tolerations, gone.Tolerations),
			"affinity":         cmp.Diff(agent.Affinity, gone.Affinity),
			"service account":  cmp.Diff(agent.ServiceAccountName, gone.ServiceAccountName),
			"command":          cmp.Diff(command, append(slices.Clone(to.Command), to.Args...)),
		} {
			if d != "" {
				t.Errorf("%s: %s (-agent +%s):\n%s", file, what, file, d)
			}
		}
	}
}

// K-12: the rollback is the agent's DaemonSet by name and selector, so that the agent ends on each node before it begins, and
// flannel's manifest takes its place in turn.
func TestK12TheRollbackTakesTheAgentsPlaceNodeByNode(t *testing.T) {
	data, err := os.ReadFile("rollback.yml")
	if err != nil {
		t.Fatal(err)
	}
	agent, back := parse(t, KubeFlannel).daemon, parse(t, string(data)).daemon
	for what, d := range map[string]string{
		"name":       cmp.Diff(agent.ObjectMeta, back.ObjectMeta),
		"selector":   cmp.Diff(agent.Spec.Selector, back.Spec.Selector),
		"pod labels": cmp.Diff(agent.Spec.Template.Labels, back.Spec.Template.Labels),
		"strategy":   cmp.Diff(agent.Spec.UpdateStrategy, back.Spec.UpdateStrategy),
	} {
		if d != "" {
			t.Errorf("%s (-agent +rollback):\n%s", what, d)
		}
	}
}

// As a service of the node the agent sees the disk through a sandbox. What is not there when that is made can never be written:
// on a fresh host no conflist would ever appear.
func TestTheServiceMakesWhatItsSandboxLetsIn(t *testing.T) {
	data, err := os.ReadFile("systemd/flanneld.service")
	if err != nil {
		t.Fatal(err)
	}
	made := regexp.MustCompile(`(?m)^ExecStartPre=\+/bin/mkdir -p (.+)$`).FindSubmatch(data)
	state := regexp.MustCompile(`(?m)^StateDirectory=(.+)$`).FindSubmatch(data)
	open := regexp.MustCompile(`(?m)^ReadWritePaths=(.+)$`).FindSubmatch(data)
	if made == nil || state == nil || open == nil {
		t.Fatal("the unit makes no directories, or lets none in")
	}
	there := append(strings.Fields(string(made[1])), "/run", "/var/lib/"+string(state[1]))
	for _, path := range strings.Fields(string(open[1])) {
		if path = strings.TrimPrefix(path, "-"); !slices.Contains(there, path) {
			t.Errorf("%s is let in and not made", path)
		}
	}
}
