package manifests

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/weft-cni/weft/subnet/claim"
)

func TestX03TheGuardNamesEveryAnnotationThatTheAgentWritesAndNoOther(t *testing.T) {
	text, err := os.ReadFile("node-guard.yml")
	if err != nil {
		t.Fatal(err)
	}
	_, outputs := claim.AllKeys()
	var quoted []string
	for _, key := range outputs {
		quoted = append(quoted, "'"+key+"'")
	}
	if want := "[" + strings.Join(quoted, ", ") + "]"; !strings.Contains(string(text), want) {
		t.Errorf("the list is to be %s", want)
	}
}

// asAgent is the client of the agent on a node, as the API server knows it by the token of its pod.
func (a admin) asAgent(node string) kubernetes.Interface {
	a.t.Helper()
	conf, err := clientcmd.BuildConfigFromFlags("", a.config)
	if err != nil {
		a.t.Fatal(err)
	}
	conf.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:kube-flannel:flannel", Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	if node != "" {
		conf.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	client, err := kubernetes.NewForConfig(conf)
	if err != nil {
		a.t.Fatal(err)
	}
	return client
}

func patchStatus(client kubernetes.Interface, node, body string) error {
	_, err := client.CoreV1().Nodes().Patch(context.Background(), node, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, "status")
	return err
}

func TestX03AnAgentChangesItsOwnNodeAloneAndOfThatWhatItAnnounces(t *testing.T) {
	a := newAdmin(t)
	a.must("apply", "-f", "base/namespace.yaml", "-f", "base/rbac.yaml", "-f", "node-guard.yml")
	ctx := context.Background()
	for _, name := range []string{"a", "b"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"l": "1"}, Annotations: map[string]string{
			"flannel.alpha.coreos.com/public-ip-overwrite": "192.0.2.1", "example.com/secret": "s",
		}}}
		made, err := a.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.50.1"}}
		if _, err := a.client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const announce = `{"metadata":{"annotations":{"flannel.alpha.coreos.com/kube-subnet-manager":"true","flannel.alpha.coreos.com/public-ip":"192.168.50.1",
		"flannel.alpha.coreos.com/backend-data":"null","flannel.alpha.coreos.com/backend-also":null}},
		"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"FlannelIsUp"}]}}`
	a.untilGuarded(t, announce)
	agent, nobody := a.asAgent("a"), a.asAgent("")
	for i := range 2 { // the first one makes annotations and condition, the second finds them
		if err := patchStatus(agent, "a", announce); err != nil {
			t.Fatalf("its own announcement, %d: %v", i+1, err)
		}
	}
	if err := patchStatus(agent, "a", strings.ReplaceAll(announce, `"192.168.50.1"`, `null`)); err != nil {
		t.Errorf("an annotation is taken back: %v", err)
	}
	if err := patchStatus(a.client, "b", announce); err != nil {
		t.Errorf("an administrator: %v", err)
	}
	for _, tc := range []struct {
		name   string
		client kubernetes.Interface
		node   string
		body   string
		want   string
	}{
		{"another node's address", agent, "b", announce, "the agent of node a may not change node b"},
		{"a token without a node", nobody, "a", announce, "names no node"},
		{"an annotation of somebody else", agent, "a", `{"metadata":{"annotations":{"example.com/secret":"t"}}}`, "may change these annotations alone"},
		{"one is removed", agent, "a", `{"metadata":{"annotations":{"example.com/secret":null}}}`, "may change these annotations alone"},
		{"one that is the administrator's", agent, "a", `{"metadata":{"annotations":{"flannel.alpha.coreos.com/public-ip-overwrite":"192.0.2.9"}}}`, "may change these annotations alone"},
		{"a new one", agent, "a", `{"metadata":{"annotations":{"flannel.alpha.coreos.com/node-public-ip":"192.0.2.9"}}}`, "may change these annotations alone"},
		{"a label", agent, "a", `{"metadata":{"labels":{"l":"2"}}}`, "neither labels"},
		{"another condition", agent, "a", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "nothing of its Node's status"},
		{"an address", agent, "a", `{"status":{"addresses":[{"type":"InternalIP","address":"192.168.50.9"}]}}`, "nothing of its Node's status"},
		{"capacity", agent, "a", `{"status":{"capacity":{"cpu":"64"}}}`, "nothing of its Node's status"},
	} {
		err := patchStatus(tc.client, tc.node, tc.body)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: want %q, got %v", tc.name, tc.want, err)
		}
	}
}

// untilGuarded waits for the policy: the server takes a moment to load it.
func (a admin) untilGuarded(t *testing.T, body string) {
	t.Helper()
	nobody := a.asAgent("")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := patchStatus(nobody, "a", body)
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "names no node") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the policy is not in force: %v", err)
		}
	}
}
