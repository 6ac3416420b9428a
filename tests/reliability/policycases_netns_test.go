package reliability

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/subnet/attach"
)

// quick holds what the contract allows a second to that, as this run judges it; more is what the test itself waits meanwhile.
func (w *guarded) quick(what string, took, more time.Duration) {
	w.t.Helper()
	form, err := FormOf()
	w.must(err)
	w.t.Logf("%s after %v", what, took)
	if took > form.within(time.Second)+more {
		w.t.Errorf("%s after %v", what, took)
	}
}

// idles compares an agent without policies to one that is told to leave them alone.
func (w *guarded) idles() {
	w.soon("no table", w.stands())
	w.restart()
	w.ready()
	on := w.memory()
	w.restart("--network-policy=off")
	w.ready()
	off := w.memory()
	w.t.Logf("anonymous memory: on %d KiB, off %d KiB", on>>10, off>>10)
	if on > off+10<<20 {
		w.t.Errorf("an agent without policies holds %d bytes; without NetworkPolicy %d", on, off)
	}
	w.restart()
	w.ready()
}

// memory is the least that the agent held within three seconds.
func (w *guarded) memory() int {
	w.t.Helper()
	least := 0
	for range 30 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.node.Agent.PID()))
		w.must(err)
		_, rest, _ := strings.Cut(string(text), "RssAnon:")
		kib, err := strconv.Atoi(strings.Fields(rest)[0])
		w.must(err)
		if least == 0 || kib<<10 < least {
			least = kib << 10
		}
		time.Sleep(100 * time.Millisecond) // a sample, not a wait
	}
	return least
}

func (w *guarded) denies() {
	w.must(w.passes())
	w.deny()
	took := w.soon("the policy", func() error {
		if !strings.Contains(w.node.NS.Run("nft", "list", "ruleset"), "shop/deny") {
			return errNotYet
		}
		return w.both()()
	})
	w.quick("enforced", took, 0)
	w.must(w.drops())
	w.ready()
	w.soon("the metric", w.shows("weft_policy_enforced", 1))
	w.soon("the counter", func() error {
		n, err := w.metric(`weft_policy_denied_packets_total{direction="ingress",policy="shop/deny"}`)
		if err == nil && n == 0 {
			err = errNotYet
		}
		return err
	})
}

func (w *guarded) switches() {
	for _, step := range []struct {
		mode   string
		tables []string
		traces int // folder of notes and socket
		passes bool
	}{
		{"audit", []string{policy.TableName}, 2, true},
		{"on", []string{policy.TableName, attach.TableName}, 2, false},
		{"off", nil, 0, true},
		{"audit", []string{policy.TableName}, 2, true},
		{"off", nil, 0, true},
		{"on", []string{policy.TableName, attach.TableName}, 2, false},
	} {
		w.restart("--network-policy=" + step.mode)
		w.soon(step.mode, func() error {
			if have := w.exists(); len(have) != step.traces {
				return fmt.Errorf("%s leaves %v", step.mode, have)
			}
			if err := w.passes(); (err == nil) != step.passes {
				return fmt.Errorf("%s: %w", step.mode, cmpErr(err))
			}
			return errors.Join(w.stands(step.tables...)(), w.node.Agent.Ready())
		})
	}
}

func cmpErr(err error) error {
	if err == nil {
		return errors.New("a connection is made")
	}
	return err
}

func (w *guarded) flushed() {
	for range 3 {
		before := w.node.NS.Run("nft", "--stateless", "list", "table", "inet", policy.TableName)
		w.node.NS.Run("nft", "flush", "ruleset")
		took := w.soon("both tables", w.both())
		w.quick("back", took, 0)
		w.soon("the same rules", func() error {
			if after := w.node.NS.Run("nft", "--stateless", "list", "table", "inet", policy.TableName); len(after) != len(before) {
				return fmt.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
			return w.drops()
		})
	}
	for _, hurt := range []string{"flush table inet " + attach.TableName, "delete table inet " + attach.TableName, "flush table inet " + policy.TableName} {
		w.node.NS.Run(append([]string{"nft"}, strings.Fields(hurt)...)...)
		took := w.soon(hurt, func() error {
			gate := w.node.NS.Run("nft", "list", "ruleset")
			if !strings.Contains(gate, "@"+attach.HeldSet(0)) || !strings.Contains(gate, "shop/deny") {
				return errNotYet
			}
			return nil
		})
		w.quick(hurt+": back", took, 0)
	}
	w.ready()
}

func (w *guarded) killed() {
	before := w.node.NS.Run("nft", "--stateless", "list", "table", "inet", policy.TableName)
	w.silence(func() {
		for range 3 {
			w.restart()
			w.ready()
		}
		w.API.Proxy.Close()
		w.restart()
		w.soon("the agent serves without the API server", w.node.Agent.Live)
		w.soon("both tables", w.both())
		w.held("killed-held")
		if after := w.node.NS.Run("nft", "--stateless", "list", "table", "inet", policy.TableName); after != before {
			w.t.Errorf("without the API server the rules became another:\n%s\n%s", before, after)
		}
		since := len(w.node.Agent.Log())
		w.ready()
		w.API.Proxy.Open()
		w.soon("the policies are read", w.shows("weft_policy_enforced", 1))
		if said := w.node.Agent.Log()[since:]; strings.Contains(said, "not ready") {
			w.t.Errorf("the node was not ready when the API server was back:\n%s", said)
		}
		w.ready()
	})
	w.soon("both tables", w.both())
	w.let("killed-held")
}

// held makes a pod of the yard, which no policy selects, and finds it held.
func (w *guarded) held(id string) {
	w.t.Helper()
	pod, took := w.add("yard", id)
	w.t.Logf("ADD without the API server took %v", took)
	if err := w.unreached(pod.Addrs...); err != nil {
		w.t.Errorf("%s is not held: %v", id, err)
	}
}

// let finds a pod that was held to be let go, once the API server tells of it.
func (w *guarded) let(id string) {
	w.t.Helper()
	addrs := w.addrsOf(id)
	w.pod("yard", id, w.node, addrs)
	w.soon("the pod is let go", func() error { return w.reaches(addrs...) })
	w.del("yard", id)
	w.must(w.Client.CoreV1().Pods("yard").Delete(w.t.Context(), id, *metav1.NewDeleteOptions(0)))
}

func (w *guarded) reconfigured() {
	w.silence(func() {
		before := strings.Count(w.node.Agent.Log(), "network configuration")
		conf := strings.Replace(w.NetConf(), `"vxlan"`, `"vxlan", "MTU": 1400`, 1)
		w.must(os.WriteFile(w.node.Path("net-conf.json"), []byte(conf), 0o600))
		w.soon("the new MTU", func() error { return w.mtu(1400) })
		w.must(w.both()())
		w.must(os.WriteFile(w.node.Path("net-conf.json"), []byte(w.NetConf()), 0o600))
		w.soon("the old MTU", func() error { return w.mtu(1500) })
		w.ready()
		w.t.Logf("generations: %d lines before, %d after", before, strings.Count(w.node.Agent.Log(), "network configuration"))
	})
	w.must(w.both()())
}

// mtu wants devices that are made for an underlay of that MTU.
func (w *guarded) mtu(underlay int) error {
	for _, f := range w.Lane.Families() {
		if !strings.Contains(w.node.NS.IP("link show "+device(f)), fmt.Sprintf("mtu %d", underlay-wordsFor(f).overhead)) {
			return errNotYet
		}
	}
	return nil
}

// reboot does to the node what a boot does that finds no API server.
func (w *guarded) reboot() {
	w.t.Helper()
	w.node.Agent.Kill()
	w.API.Proxy.Close()
	w.node.NS.Run("nft", "flush", "ruleset")
	w.must(errors.Join(os.RemoveAll(w.node.Path("run")), os.RemoveAll(w.node.Path("net.d/"+install.ConflistName))))
	w.must(os.MkdirAll(w.node.Path("run"), 0o755))
	w.must(w.node.Agent.Start(Options{}))
	w.soon("the conflist", func() error { _, err := w.runtime.list(); return err })
	w.must(w.stands(attach.TableName)()) // a pod that comes now is held
}

func (w *guarded) boots() {
	w.reboot()
	w.held("boots-held")
	w.ready()
	since := len(w.node.Agent.Log())
	w.API.Proxy.Open()
	w.soon("both tables", w.both())
	w.ready()
	if said := w.node.Agent.Log()[since:]; strings.Contains(said, "not ready") {
		w.t.Errorf("the node was not ready when the API server was back:\n%s", said)
	}
	w.let("boots-held")
	w.soon("the policy", w.drops)
}

func (w *guarded) opened() {
	w.must(w.drops())
	w.allow()
	took := w.soon("the server", w.passes)
	w.soon("no table", w.stands())
	w.quick("passes", took, 300*time.Millisecond) // a try that is denied waits so long for its answer
	pod, _ := w.add("yard", "opened")
	w.must(w.reaches(pod.Addrs...))
	w.del("yard", "opened")
}

// definition is where ClusterNetworkPolicies are defined.
const definitionPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

const clusterPoliciesPath = "/apis/policy.networking.k8s.io/v1beta1/clusternetworkpolicies"

func (w *guarded) post(path, text string) error {
	body, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return err
	}
	return w.Client.RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(body).Do(w.t.Context()).Error()
}

func (w *guarded) defined() {
	text, err := os.ReadFile(root + "/manifests/clusternetworkpolicy.yml")
	w.must(err)
	for _, doc := range strings.Split(string(text), "\n---") {
		if strings.Contains(doc, "kind: CustomResourceDefinition") {
			w.must(w.post(definitionPath, doc))
		}
	}
	admin := `
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: first}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}
  ingress: [{name: all, action: Accept, from: [{namespaces: {}}]}]
`
	w.soon("the definition is served", func() error { return w.post(clusterPoliciesPath, admin) })
	took := w.soon("the ClusterNetworkPolicy", w.passes)
	w.t.Logf("enforced after %v", took)
	w.must(w.Client.RESTClient().Delete().AbsPath(clusterPoliciesPath + "/first").Do(w.t.Context()).Error())
	w.soon("the NetworkPolicy alone", w.drops)
	w.must(w.Client.RESTClient().Delete().AbsPath(definitionPath + "/clusternetworkpolicies.policy.networking.k8s.io").Do(w.t.Context()).Error())
	w.ready()
}

// role takes the rules of a resource out of the agent's ClusterRole.
func (w *guarded) role(without string) {
	w.t.Helper()
	roles := w.Client.RbacV1().ClusterRoles()
	role, err := roles.Get(w.t.Context(), "flannel", metav1.GetOptions{})
	w.must(err)
	w.rights = role.DeepCopy()
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, without) })
	_, err = roles.Update(w.t.Context(), role, metav1.UpdateOptions{})
	w.must(err)
}

func (w *guarded) permit() {
	w.t.Helper()
	role, err := w.Client.RbacV1().ClusterRoles().Get(w.t.Context(), "flannel", metav1.GetOptions{})
	w.must(err)
	role.Rules = w.rights.Rules
	_, err = w.Client.RbacV1().ClusterRoles().Update(w.t.Context(), role, metav1.UpdateOptions{})
	w.must(err)
}

// told waits until it is said that nothing is enforced.
func (w *guarded) told(since int) {
	w.t.Helper()
	w.soon("the log", func() error {
		if !strings.Contains(w.node.Agent.Log()[since:], "NetworkPolicies are not enforced") {
			return errNotYet
		}
		return nil
	})
	w.soon("the metric", w.shows("weft_policy_enforced", 0))
	w.soon("the Event", func() error {
		events, err := w.Client.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{FieldSelector: "reason=PolicyNotEnforced"})
		if err == nil && !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.InvolvedObject.Name == w.node.Name }) {
			err = errNotYet
		}
		return err
	})
	w.ready()
	w.soon("no table", w.stands())
}

func (w *guarded) forbidden() {
	w.role("networkpolicies")
	w.deny()
	since := len(w.node.Agent.Log())
	w.restart()
	w.told(since)
	w.must(w.passes())
	pod, took := w.add("yard", "forbidden")
	w.must(w.reaches(pod.Addrs...))
	w.t.Logf("ADD took %v", took)
	w.del("yard", "forbidden")
	if n := strings.Count(w.node.Agent.Log()[since:], "NetworkPolicies are not enforced"); n != 1 {
		w.t.Errorf("said %d times:\n%s", n, w.node.Agent.Log()[since:])
	}
	w.permit()
	w.soon("the policy, once it is permitted", func() error { return errors.Join(w.both()(), w.drops()) })
	w.soon("the metric", w.shows("weft_policy_enforced", 1))
}

func (w *guarded) forbiddenAtBoot() {
	w.role("networkpolicies")
	since := len(w.node.Agent.Log())
	w.reboot()
	pod, _ := w.add("yard", "boot")
	w.API.Proxy.Open()
	w.told(since)
	w.must(w.reaches(pod.Addrs...))
	w.del("yard", "boot")
	w.permit()
	w.soon("the policy, once it is permitted", func() error { return errors.Join(w.both()(), w.drops()) })
}

// revoked takes the rights from an agent that has used them: what it wrote stays in force, and it says so.
func (w *guarded) revoked() {
	w.role("networkpolicies")
	w.restart()
	took := w.soon("the node is not ready and says why", func() error {
		if err := w.node.Agent.Ready(); err == nil || !strings.Contains(err.Error(), "can no longer be watched") {
			return cmpErr(err)
		}
		return nil
	})
	w.t.Logf("not ready after %v", took)
	w.must(errors.Join(w.both()(), w.drops()))
	w.permit()
	w.ready()
	w.must(errors.Join(w.both()(), w.drops()))
}

func (w *guarded) uninstalled() {
	w.must(w.both()())
	if have := w.exists(); len(have) != 2 {
		w.t.Errorf("before there are %v", have)
	}
	w.node.Agent.Kill()
	uninstall(w.t, w.node)
	w.must(w.stands()())
	if have := w.exists(); len(have) != 0 {
		w.t.Errorf("left: %v", have)
	}
	if _, err := os.Stat(w.node.Path("state")); err == nil {
		w.t.Error("left: the folder of the state")
	}
}
