package doctor

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
)

// flannelSet is a DaemonSet as flannel's manifest makes it.
func flannelSet(namespace, name string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: appsv1.DaemonSetSpec{
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Image: "flannel:v0.28.9", Command: []string{"/opt/bin/flanneld"}, Args: []string{"--ip-masq", "--kube-subnet-mgr", "--iface=eth1"},
				Env: []corev1.EnvVar{{Name: "FLANNELD_V", Value: "1"}, {Name: "POD_NAME"}},
			}},
			Volumes: []corev1.Volume{{Name: "cfg", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-flannel-cfg"},
			}}}},
		}},
	}}
}

func flannelConfig(namespace string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kube-flannel-cfg"}, Data: map[string]string{
		"net-conf.json": `{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}`,
		"cni-conf.json": `{"name": "cbr0", "cniVersion": "0.3.1", "plugins": [{"type": "flannel"}, {"type": "portmap"}]}`,
	}}
}

func TestTheRunningFlannelIsFoundAndRead(t *testing.T) {
	other := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy"}}
	client := fake.NewClientset(flannelSet("kube-system", "kube-flannel-ds-amd64"), flannelSet("kube-flannel", "kube-flannel-ds"), other, flannelConfig("kube-flannel"))
	got, err := running(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	want := Install{
		Namespace: "kube-flannel", DaemonSet: "kube-flannel-ds", Images: []string{"flannel:v0.28.9"},
		Args: []string{"--ip-masq", "--kube-subnet-mgr", "--iface=eth1"}, Env: map[string]string{"FLANNELD_V": "1"},
		NetConf: `{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}`, Plugins: []string{"flannel", "portmap"}, CNIName: "cbr0",
		Others: []string{"kube-system/kube-flannel-ds-amd64"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAFlannelThatAShellStartsIsReadToo(t *testing.T) {
	set := flannelSet("kube-flannel", "kube-flannel-ds")
	pod := &set.Spec.Template.Spec
	pod.Containers[0].Command = []string{"/bin/sh", "-c", "set -e; exec /opt/bin/flanneld --ip-masq \\\n  --kube-subnet-mgr --iface=$NIC"}
	pod.Containers[0].Args = nil
	pod.Containers[0].Env = []corev1.EnvVar{{Name: "FLANNELD_PUBLIC_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIP"}}}}
	pod.Volumes = append([]corev1.Volume{{Name: "ca", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "corporate-ca"},
	}}}}, pod.Volumes...)
	pod.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "ca", MountPath: "/etc/ssl"}, {Name: "cfg", MountPath: "/etc/kube-flannel/"}}
	got, err := running(t.Context(), fake.NewClientset(set, flannelConfig("kube-flannel")))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"--ip-masq", "--kube-subnet-mgr", "--iface=$NIC"}, got.Args); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"FLANNELD_PUBLIC_IP": "(status.hostIP)"}, got.Env); diff != "" {
		t.Error(diff)
	}
}

func TestWhatIsNotThereIsNamed(t *testing.T) {
	if _, err := running(t.Context(), fake.NewClientset()); err == nil || !strings.Contains(err.Error(), "nothing to migrate") {
		t.Errorf("no flannel: %v", err)
	}
	if _, err := running(t.Context(), fake.NewClientset(flannelSet("kube-flannel", "x"))); err == nil || !strings.Contains(err.Error(), "kube-flannel/kube-flannel-cfg") {
		t.Errorf("no ConfigMap: %v", err)
	}
	broken := flannelConfig("kube-flannel")
	broken.Data["cni-conf.json"] = "{"
	if _, err := running(t.Context(), fake.NewClientset(flannelSet("kube-flannel", "x"), broken)); err == nil || !strings.Contains(err.Error(), "cni-conf.json") {
		t.Errorf("broken conflist: %v", err)
	}
}

// K-01: k3s and others have flannel within a program of theirs. Applying the manifest would have two agents on each node.
func TestK01AFlannelThatNoDaemonSetRunsIsNamed(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "edge-1", Annotations: map[string]string{"flannel.alpha.coreos.com/kube-subnet-manager": "true"}},
		Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.1+k3s1"}},
	}
	_, err := running(t.Context(), fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, node))
	if err == nil {
		t.Fatal("there is nothing to compare with, and nobody says so")
	}
	for _, want := range []string{"node edge-1 (kubelet v1.36.1+k3s1)", "switch that one off first", "k3s: --flannel-backend=none"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %q", want, err)
		}
	}
}

func TestARefusalNamesWhatToDo(t *testing.T) {
	const server = "https://192.0.2.1:6443"
	daemonSets := schema.GroupResource{Group: "apps", Resource: "daemonsets"}
	for want, err := range map[string]error{
		"--kubeconfig-file=FILE":                     apierrors.NewForbidden(daemonSets, "", errors.New("no")),
		"API server " + server + " does not accept":  apierrors.NewUnauthorized("no"),
		"API server " + server + " not reachable":    &url.Error{Op: "Get", URL: server, Err: errors.New("connection refused")},
		"no DaemonSet of this cluster runs flanneld": errors.New("no DaemonSet of this cluster runs flanneld"),
	} {
		if got := explain(server, fmt.Errorf("list DaemonSets: %w", err)); !strings.Contains(got.Error(), want) {
			t.Errorf("%q is missing in %q", want, got)
		}
	}
}

func TestAVariableFromAConfigMapIsADifferenceLikeOneFromAField(t *testing.T) {
	set := flannelSet("kube-flannel", "kube-flannel-ds")
	set.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "FLANNELD_IFACE", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: "site"}, Key: "nic",
	}}}}
	got, err := running(t.Context(), fake.NewClientset(set, flannelConfig("kube-flannel")))
	if d := cmp.Diff(map[string]string{"FLANNELD_IFACE": "(ConfigMap site, key nic)"}, got.Env); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
}

func TestOurOwnManifestIsReadTheSameWay(t *testing.T) {
	got, err := shipped()
	if err != nil {
		t.Fatal(err)
	}
	if got.Namespace != "kube-flannel" || got.DaemonSet != "kube-flannel-ds" || got.CNIName != "cbr0" || !strings.Contains(got.NetConf, "10.244.0.0/16") {
		t.Errorf("got %+v", got)
	}
	if diff := cmp.Diff([]string{"flannel", "portmap", "bandwidth"}, got.Plugins); diff != "" {
		t.Error(diff)
	}
	theirs := stock()
	if findings := Compare(theirs, got); len(findings) != 0 {
		t.Errorf("stock flannel against our manifest: %+v", findings)
	}
}
