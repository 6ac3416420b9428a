package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/tests/apiserver"
)

// server is a real API server with our manifest's ClusterRole.
type server struct {
	*testing.T
	api   *apiserver.API
	admin *kubernetes.Clientset
}

func newServer(t *testing.T, drop ...string) *server {
	t.Helper()
	api := apiserver.Start(t)
	s := &server{T: t, api: api, admin: api.Admin()}
	s.must(nil, apiserver.Permit(s.admin, "../../../manifests/kube-flannel.yml"))
	s.drop(drop...)
	s.must(s.admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"team": "a"}}}, metav1.CreateOptions{}))
	return s
}

// drop takes the rights to some resources away.
func (s *server) drop(resources ...string) {
	s.Helper()
	roles := s.admin.RbacV1().ClusterRoles()
	role, err := roles.Get(s.Context(), "flannel", metav1.GetOptions{})
	s.must(role, err)
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(resources, r.Resources[0]) })
	s.must(roles.Update(s.Context(), role, metav1.UpdateOptions{}))
}

func (s *server) must(_ any, err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// watch starts a Source with the agent's rights.
func (s *server) watch(log io.Writer) *stand {
	s.Helper()
	client, err := kube.NewClient(kube.ClientOptions{KubeconfigFile: s.api.Kubeconfig, UserAgent: "weft/test"})
	if err != nil {
		s.Fatal(err)
	}
	w := &stand{T: s.T, source: New(Config{Client: client, NodeName: "n1", Linger: time.Second, Log: slog.New(slog.NewTextHandler(log, nil))})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.source.Run(ctx) }()
	s.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.Error(err)
		}
	})
	return w
}

// pod makes a running Pod on a node.
func (s *server) pod(name, node, ip string) {
	s.Helper()
	pods := s.admin.CoreV1().Pods("x")
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	p, err := pods.Create(s.Context(), p, metav1.CreateOptions{})
	s.must(p, err)
	p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
	s.must(pods.UpdateStatus(s.Context(), p, metav1.UpdateOptions{}))
}

func (s *server) policy(name string) {
	s.Helper()
	s.must(s.admin.NetworkingV1().NetworkPolicies("x").Create(s.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"}},
	}, metav1.CreateOptions{}))
}

// post sends YAML to a path that the typed client has no word for, until the server takes it.
func (s *server) post(path, text string) {
	s.Helper()
	body, err := yaml.YAMLToJSON([]byte(text))
	s.must(nil, err)
	s.soon("post to "+path, func() error {
		err := s.admin.RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(body).Do(s.Context()).Error()
		if apierrors.IsAlreadyExists(err) && !strings.Contains(err.Error(), "being deleted") {
			return nil
		}
		return err
	})
}

func (s *server) soon(what string, f func() error) {
	s.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("%s: %v", what, err)
		}
	}
}

const (
	definitions1 = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	clusterPath  = "/apis/policy.networking.k8s.io/v1beta1/clusternetworkpolicies"
	clusterOne   = `
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: one}
spec:
  tier: Admin
  priority: 5
  subject: {namespaces: {matchLabels: {team: a}}}
  ingress: [{action: Deny, from: [{namespaces: {}}]}]
  egress: [{action: Accept, to: [{nodes: {}}], protocols: [{destinationNamedPort: ""}]}]`
)

func (s *stand) clusterIs(want string) {
	s.Helper()
	s.until("ClusterNetworkPolicies "+want, func() bool {
		world, complete := s.source.World()
		var got []string
		for _, p := range world.Cluster {
			got = append(got, p.Name+": "+words(p.Rules))
		}
		return complete && strings.Join(got, "\n") == want
	})
}

// The rights are those of the manifest, and they are enough for all that follows.
func TestClusterNetworkPoliciesComeAndGoWithTheirDefinition(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := s.watch(io.Discard)
	w.worldIs("")
	crd, err := os.ReadFile("../../../manifests/clusternetworkpolicy.yml")
	s.must(nil, err)
	s.must(s.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}))
	one := strings.ReplaceAll(clusterOne, `, protocols: [{destinationNamedPort: ""}]`, "")
	for range 2 {
		s.post(definitions1, string(crd))
		s.post(clusterPath, one)
		w.clusterIs("one: ingress deny pods[]@namespaces[] on everything\negress accept nodes[] on everything")
		if world, _ := w.source.World(); len(world.Nodes) != 1 || len(world.Namespaces) == 0 {
			t.Errorf("nodes %d, namespaces %d", len(world.Nodes), len(world.Namespaces))
		}
		s.must(nil, s.admin.RESTClient().Delete().AbsPath(definitions1+"/"+definitionName).Do(t.Context()).Error())
		w.clusterIs("")
		w.until("no policy is left", func() bool { active, known := w.source.Active(); return !active && known })
	}
	if reason := w.source.Reason(); reason != "" {
		t.Error(reason)
	}
}

func TestTheWorldStaysWhileTheServerIsAwayAndFollowsAfterwards(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.pod("a", "n1", "10.244.1.2")
	s.policy("p")
	w := s.watch(io.Discard)
	has := func(parts ...string) func() bool {
		return func() bool {
			world, complete := w.source.World()
			got := text(world)
			return complete && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(got, p) })
		}
	}
	w.until("a World", has("x/a local running 10.244.1.2 app=a", "policy x/p", "ns x"))
	s.api.Stop()
	w.until("a reason", func() bool { return w.source.Reason() != "" })
	if !has("x/a local running 10.244.1.2 app=a", "policy x/p")() {
		t.Error("the World went with the server")
	}
	s.api.Resume()
	s.pod("b", "n2", "10.244.2.2")
	s.policy("q")
	w.until("what came since", has("x/b running 10.244.2.2 app=b", "policy x/q", "x/a local running"))
	w.until("no reason", func() bool { return w.source.Reason() == "" })
}

func TestAClusterRoleWithoutPoliciesIsSaidAndNothingIsDecided(t *testing.T) {
	t.Parallel()
	s := newServer(t, "networkpolicies")
	log := &safeLog{}
	w := s.watch(log)
	w.until("a reason", func() bool { return strings.Contains(w.source.Reason(), "refuses") })
	if _, known := w.source.Active(); known {
		t.Error("it is known whether there are policies")
	}
	if _, complete := w.source.World(); complete {
		t.Error("a World without knowing the policies")
	}
	w.until("a word in the log", func() bool { return strings.Count(log.String(), "refuses") == 1 })
}

// An older ClusterRole does not let us look for the definition; NetworkPolicies work all the same.
func TestAClusterRoleWithoutDefinitionsLeavesNetworkPolicies(t *testing.T) {
	t.Parallel()
	s := newServer(t, "customresourcedefinitions")
	s.pod("a", "n1", "10.244.1.2")
	s.policy("p")
	w := s.watch(io.Discard)
	w.until("a World", func() bool {
		world, complete := w.source.World()
		return complete && len(world.Policies) == 1 && len(world.Pods) == 1
	})
	w.until("a problem", func() bool { p := w.source.Problems(); return len(p) == 1 && p[0].Policy == definitionName })
}

// Somebody applies an older manifest over ours.
func TestClusterNetworkPoliciesStayWhenTheRightToSeeThemIsTakenAway(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.must(s.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}))
	crd, err := os.ReadFile("../../../manifests/clusternetworkpolicy.yml")
	s.must(nil, err)
	s.post(definitions1, string(crd))
	s.post(clusterPath, strings.ReplaceAll(clusterOne, `, protocols: [{destinationNamedPort: ""}]`, ""))
	w := s.watch(io.Discard)
	const one = "one: ingress deny pods[]@namespaces[] on everything\negress accept nodes[] on everything"
	w.clusterIs(one)
	s.drop("clusternetworkpolicies", "customresourcedefinitions")
	s.api.Stop() // watches go on under the rights that they began with
	s.api.Resume()
	w.until("a problem", func() bool { return len(w.source.Problems()) == 1 })
	w.clusterIs(one)
	if active, known := w.source.Active(); !active || !known {
		t.Errorf("active %t, known %t", active, known)
	}
}

// An API server that starts knows no rights for a moment, and what it forbids then is nothing to go by.
func TestAKindIsRefusedWhenThatLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := answers{log: slog.New(slog.DiscardHandler), bad: map[string]error{}, since: map[string]time.Time{}}
		no, not := error(apierrors.NewForbidden(schema.GroupResource{}, "", nil)), error(apierrors.NewNotFound(schema.GroupResource{}, ""))
		for _, step := range []struct {
			err  error
			want bool
		}{{no, false}, {no, false}, {nil, false}, {no, false}, {not, false}, {no, true}, {errors.New("away"), false}, {not, false}} {
			a.note(kindCluster, step.err)
			if got := a.refusal(kindCluster); (got != nil) != step.want || step.want && !errors.Is(got, step.err) {
				t.Errorf("after %v: refused: %v", step.err, got)
			}
			time.Sleep(3 * time.Second)
		}
	})
}

// The definition came later than the ClusterRole, which somebody else wrote.
func TestAClusterRoleWithoutClusterNetworkPoliciesLeavesNetworkPolicies(t *testing.T) {
	t.Parallel()
	s := newServer(t, "clusternetworkpolicies")
	s.pod("a", "n1", "10.244.1.2")
	s.policy("p")
	crd, err := os.ReadFile("../../../manifests/clusternetworkpolicy.yml")
	s.must(nil, err)
	s.post(definitions1, string(crd))
	w := s.watch(io.Discard)
	w.until("a World", func() bool {
		world, complete := w.source.World()
		active, known := w.source.Active()
		return complete && len(world.Policies) == 1 && len(world.Pods) == 1 && active && known
	})
	w.until("a problem", func() bool {
		p := w.source.Problems()
		return len(p) == 1 && p[0].Policy == definitionName && strings.Contains(p[0].Text, "ClusterRole does not let us list and watch "+definitionName)
	})
}

// From the answer to a write until the World has it, printed; what the contract bounds is this and the kernel together.
func TestAWorldFollowsAWriteAtOnce(t *testing.T) {
	s := newServer(t)
	s.policy("p")
	w := s.watch(io.Discard)
	w.until("a World", func() bool { _, complete := w.source.World(); return complete })
	var took []time.Duration
	for i := range 100 {
		name := fmt.Sprintf("pod-%d", i)
		s.pod(name, "n2", fmt.Sprintf("10.244.2.%d", i+2))
		began := time.Now()
		w.until(name, func() bool {
			world, _ := w.source.World()
			return len(world.Pods) == i+1
		})
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("write acknowledged to World: median %v, p99 %v", took[50], took[98])
}
