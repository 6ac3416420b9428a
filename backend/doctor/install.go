package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/weft-cni/weft/manifests"
	"github.com/weft-cni/weft/subnet/claim"
)

// Install is one installation of the pod network, as its objects say.
type Install struct {
	Namespace string
	DaemonSet string
	Images    []string
	Args      []string          // of the daemon
	Env       map[string]string // FLANNELD_* of the daemon
	NetConf   string            // net-conf.json
	Plugins   []string          // types in the conflist, in order
	CNIName   string            // name of the conflist: host-local keeps its reservations under it
	Others    []string          // further DaemonSets of the same kind, namespace/name
}

// running reads the flannel of the cluster. The namespace has moved over the years, so all are searched.
func running(ctx context.Context, client kubernetes.Interface) (Install, error) {
	sets, err := client.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return Install{}, fmt.Errorf("list DaemonSets: %w", err)
	}
	found := slices.DeleteFunc(sets.Items, func(d appsv1.DaemonSet) bool { return daemonOf(d) == nil })
	if len(found) == 0 {
		return Install{}, absent(ctx, client)
	}
	// The one in today's namespace is what our manifest replaces in place.
	slices.SortStableFunc(found, func(a, b appsv1.DaemonSet) int {
		rank := func(d appsv1.DaemonSet) int {
			if d.Namespace == "kube-flannel" {
				return 0
			}
			return 1
		}
		return rank(a) - rank(b)
	})
	in := describe(found[0])
	for _, d := range found[1:] {
		in.Others = append(in.Others, d.Namespace+"/"+d.Name)
	}
	name := configMapOf(found[0])
	cm, err := client.CoreV1().ConfigMaps(in.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Install{}, fmt.Errorf("ConfigMap %s/%s of the DaemonSet is not there", in.Namespace, name)
	}
	if err != nil {
		return Install{}, fmt.Errorf("read ConfigMap %s/%s: %w", in.Namespace, name, err)
	}
	return in, in.config(*cm)
}

// absent says what it means that no DaemonSet runs flanneld. Some distributions have it within a program of theirs, and it may be a
// service of the nodes: what it announces on them tells (K-01).
func absent(ctx context.Context, client kubernetes.Interface) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list Nodes: %w", err)
	}
	announces := func(n corev1.Node) bool {
		for key, value := range n.Annotations {
			if strings.HasSuffix(key, claim.KeyManaged) && value == "true" {
				return true
			}
		}
		return false
	}
	at := slices.IndexFunc(nodes.Items, announces)
	if at < 0 {
		return errors.New("no DaemonSet of this cluster runs flanneld: there is nothing to migrate, apply the manifest")
	}
	return fmt.Errorf("no DaemonSet of this cluster runs flanneld, and node %s (kubelet %s) has its annotations all the same. If the DaemonSet has been deleted "+
		"already, apply the manifest. Else a distribution or a service of the nodes runs it, and both would: switch that one off first "+
		"(k3s: --flannel-backend=none; Talos: cluster.network.cni.name: none; a service: systemctl disable --now flanneld)",
		nodes.Items[at].Name, nodes.Items[at].Status.NodeInfo.KubeletVersion)
}

// shipped reads our own manifest the same way.
func shipped() (Install, error) {
	var in Install
	var cm corev1.ConfigMap
	for _, doc := range strings.Split(manifests.KubeFlannel, "\n---\n") {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &meta); err != nil {
			return Install{}, fmt.Errorf("read our own manifest: %w", err)
		}
		switch meta.Kind {
		case "DaemonSet":
			var d appsv1.DaemonSet
			if err := yaml.Unmarshal([]byte(doc), &d); err != nil {
				return Install{}, fmt.Errorf("read our own DaemonSet: %w", err)
			}
			in = describe(d)
		case "ConfigMap":
			if err := yaml.Unmarshal([]byte(doc), &cm); err != nil {
				return Install{}, fmt.Errorf("read our own ConfigMap: %w", err)
			}
		}
	}
	return in, in.config(cm)
}

// describe takes from a DaemonSet what the daemon is started with.
func describe(d appsv1.DaemonSet) Install {
	c := daemonOf(d)
	in := Install{Namespace: d.Namespace, DaemonSet: d.Name, Env: map[string]string{}}
	in.Args = commandLine(*c)
	if at := slices.IndexFunc(in.Args, isDaemon); at >= 0 {
		in.Args = in.Args[at+1:]
	}
	for _, e := range c.Env {
		if strings.HasPrefix(e.Name, "FLANNELD_") {
			in.Env[e.Name] = e.Value
			if e.ValueFrom != nil {
				in.Env[e.Name] = "(" + source(*e.ValueFrom) + ")"
			}
		}
	}
	for _, c := range d.Spec.Template.Spec.Containers {
		in.Images = append(in.Images, c.Image)
	}
	return in
}

// source is where a variable has its value from.
func source(from corev1.EnvVarSource) string {
	switch {
	case from.FieldRef != nil:
		return from.FieldRef.FieldPath
	case from.ConfigMapKeyRef != nil:
		return "ConfigMap " + from.ConfigMapKeyRef.Name + ", key " + from.ConfigMapKeyRef.Key
	case from.SecretKeyRef != nil:
		return "Secret " + from.SecretKeyRef.Name + ", key " + from.SecretKeyRef.Key
	}
	return "elsewhere"
}

// daemonOf finds the container that runs flanneld, or nil.
func daemonOf(d appsv1.DaemonSet) *corev1.Container {
	for i, c := range d.Spec.Template.Spec.Containers {
		if slices.ContainsFunc(commandLine(c), isDaemon) {
			return &d.Spec.Template.Spec.Containers[i]
		}
	}
	return nil
}

func isDaemon(word string) bool { return path.Base(word) == "flanneld" }

// commandLine is what a container runs, word by word; of a shell's script as well, as far as blanks tell words apart.
func commandLine(c corev1.Container) []string {
	var out []string
	for _, w := range append(slices.Clone(c.Command), c.Args...) {
		out = append(out, strings.Fields(strings.ReplaceAll(w, "\\\n", " "))...)
	}
	return out
}

// configMapOf is the ConfigMap that the DaemonSet mounts as its configuration: where the daemon looks for it, or else the first.
func configMapOf(d appsv1.DaemonSet) string {
	volumes := d.Spec.Template.Spec.Volumes
	for _, m := range daemonOf(d).VolumeMounts {
		at := slices.IndexFunc(volumes, func(v corev1.Volume) bool { return v.Name == m.Name && v.ConfigMap != nil })
		if path.Clean(m.MountPath) == "/etc/kube-flannel" && at >= 0 {
			return volumes[at].ConfigMap.Name
		}
	}
	for _, v := range volumes {
		if v.ConfigMap != nil {
			return v.ConfigMap.Name
		}
	}
	return "kube-flannel-cfg"
}

// config takes the two files of the ConfigMap.
func (in *Install) config(cm corev1.ConfigMap) error {
	in.NetConf = cm.Data["net-conf.json"]
	var list struct {
		Name    string `json:"name"`
		Plugins []struct {
			Type string `json:"type"`
		} `json:"plugins"`
	}
	text := cm.Data["cni-conf.json"]
	if text == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return fmt.Errorf("read cni-conf.json of ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	in.CNIName = list.Name
	for _, p := range list.Plugins {
		in.Plugins = append(in.Plugins, p.Type)
	}
	return nil
}
