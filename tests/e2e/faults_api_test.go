package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// apiFaults are what happens to the API server: P-13 and D-04.
func apiFaults() []fault {
	return []fault{
		{name: "API server: away", note: "10 minutes; the time is from the API server's Service being there again on every node, as in all rows of it", short: true, heal: 2 * time.Second, do: apiAwayForLong},
		{
			name: "API server: away, agents killed meanwhile", note: "the kubelet starts them, and they go on from the state on disk",
			heal: 2 * time.Second, do: killAgentsWithoutAPI,
		},
		{name: "API server: its certificate renewed", note: "by kubeadm, and the server restarted", heal: 2 * time.Second, do: renewCertificate},
		{
			name: "API server: the agents' token replaced, the old one refused",
			note: "the server is restarted, so that every watch must be made anew", heal: 2 * time.Second, do: replaceToken,
		},
		{
			name: "etcd: killed", note: "the kubelet starts it again", times: 10,
			do: func(t *testing.T) time.Duration {
				onHost(t, suite.Node(1).Machine, "pkill", "-KILL", "-x", "etcd")
				return untilAgentsFollow(t)
			},
		},
		{
			name: "node: power cut and boot while the API server is away", between: []int{1, 2},
			note: "a kubelet starts no pod without the API server, so the agent is one that runs as a service; the time is from the boot to a data plane as it was",
			do:   bootWithoutAPI,
		},
	}
}

// apiAnswers is nil when the API server is ready.
func apiAnswers() error {
	_, err := suite.Fabric.Exec(contextOfCleanup(), "curl", "-skf", "-m", "1", "-o", "/dev/null", apiServer()+"/readyz")
	return err
}

// apiServer is where the API server listens.
func apiServer() string { return "https://" + net.JoinHostPort(suite.Node(1).IP, "6443") }

// takeAPIAway stops the API server as an administrator would and returns once it does not answer; back waits until it is
// ready again. It is back at the latest when the test ends.
func takeAPIAway(t *testing.T) (back func()) {
	t.Helper()
	first := suite.Node(1)
	manifest, parked := first.Path("/etc/kubernetes/manifests/kube-apiserver.yaml"), first.Path("/etc/kubernetes/kube-apiserver.yaml")
	must(t, os.Rename(manifest, parked))
	back = func() {
		if _, err := os.Stat(parked); err == nil {
			must(t, os.Rename(parked, manifest))
		}
		must(t, cluster.Eventually(contextOfCleanup(), 2*time.Minute, "the API server is back", apiAnswers))
	}
	t.Cleanup(back)
	eventually(t, time.Minute, "the API server is gone", func() error {
		if apiAnswers() == nil {
			return errors.New("it still answers")
		}
		return nil
	})
	return back
}

// apiClient asks the API server as the administrator, by a program that starts faster than kubectl.
type apiClient struct{ certificate, key string }

// newAPIClient takes the credentials out of the administrator's kubeconfig.
func newAPIClient(t *testing.T) apiClient {
	t.Helper()
	conf, err := os.ReadFile(suite.Kubeconfig())
	must(t, err)
	c := apiClient{certificate: filepath.Join(t.TempDir(), "crt"), key: filepath.Join(t.TempDir(), "key")}
	for field, file := range map[string]string{"client-certificate-data": c.certificate, "client-key-data": c.key} {
		_, after, _ := strings.Cut(string(conf), field+": ")
		line, _, _ := strings.Cut(after, "\n")
		pem, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
		must(t, err)
		must(t, os.WriteFile(file, pem, 0o600))
	}
	return c
}

func (c apiClient) ask(ctx context.Context, path string, args ...string) (string, error) {
	return suite.Fabric.Exec(ctx, append([]string{"curl", "-sSfk", "-m", "5", "--cert", c.certificate, "--key", c.key,
		apiServer() + path}, args...)...)
}

// untilAgentsFollow waits until every node reaches the API server's Service again, for which kube-proxy must have found it
// first, and returns how long after that every agent is up to date: it has seen that its Node's condition is wrong, has been
// allowed to put it right, and says that it is ready.
func untilAgentsFollow(t *testing.T) time.Duration {
	t.Helper()
	api := newAPIClient(t)
	eventually(t, 2*time.Minute, "the API server is back", apiAnswers)
	proxies := eventually(t, 2*time.Minute, "every node reaches the API server's Service", func() error {
		return onEachNode(func(ctx context.Context, n *cluster.Node) error {
			_, err := n.Exec(ctx, "curl", "-skf", "-m", "1", "-o", "/dev/null", "https://"+net.JoinHostPort(apiService(), "443")+"/readyz")
			return err
		})
	})
	t.Logf("the kube-proxies took %s to lead to the API server again", proxies.Round(100*time.Millisecond))
	start := time.Time{}
	for _, n := range suite.Nodes() {
		eventually(t, time.Minute, "the API server takes a change", func() error {
			_, err := api.ask(t.Context(), "/api/v1/nodes/"+n.Name+"/status", "-X", "PATCH", "-H", "Content-Type: application/strategic-merge-patch+json",
				"-o", "/dev/null", "-d", `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"Test","message":"test"}]}}`)
			return err
		})
		if start.IsZero() { // one that says it is ready may still wait for etcd
			start = time.Now()
		}
	}
	eventually(t, 2*time.Minute, "every agent has seen the change", func() error {
		out, err := api.ask(t.Context(), "/api/v1/nodes")
		if err != nil {
			return err
		}
		var list struct{ Items []nodeObject }
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return err
		}
		for _, n := range list.Items {
			if n.condition("NetworkUnavailable").Status != "False" {
				return fmt.Errorf("the agent on %s has not", n.Metadata.Name)
			}
		}
		return agentsReady()
	})
	took := time.Since(start)
	if took > 5*time.Second {
		for node, pod := range agentPods(t) {
			name, _, _ := strings.Cut(pod, " ")
			lines, _ := suite.Kubectl(t.Context(), "-n", "kube-flannel", "logs", name, "--tail=5") // for people
			t.Logf("%s took long; what the agent says:\n%s", node, lines)
		}
	}
	return took
}

func apiAwayForLong(t *testing.T) time.Duration {
	away := 10 * time.Minute
	if os.Getenv("WEFT_RELIABILITY") == "" {
		away = 30 * time.Second
	}
	back := takeAPIAway(t)
	over := time.After(away)
	eventually(t, time.Minute, "every agent says that it works from what it knows", func() error {
		return onEachNode(func(ctx context.Context, n *cluster.Node) error {
			out, err := n.Exec(ctx, curl("http://127.0.0.1:8081/readyz")...)
			if err == nil && !strings.Contains(out, "stale: API away since") {
				err = fmt.Errorf("%s: %s", n.Name, out)
			}
			return err
		})
	})
	<-over
	back()
	return untilAgentsFollow(t)
}

func killAgentsWithoutAPI(t *testing.T) time.Duration {
	back := takeAPIAway(t)
	before := agentProcesses(t)
	must(t, onEachNode(signalAgent("KILL")))
	took := eventually(t, time.Minute, "every agent is another process, and ready", func() error {
		for node, pid := range agentProcesses(t) {
			if pid == before[node] || pid == "" {
				return fmt.Errorf("the agent on %s is process %q", node, pid)
			}
		}
		return onEachNode(func(ctx context.Context, n *cluster.Node) error {
			_, err := n.Exec(ctx, curl("http://127.0.0.1:8081/readyz")...)
			return err
		})
	})
	t.Logf("ready without the API server %s after the kill", took.Round(100*time.Millisecond))
	second := suite.Node(2).Machine // they must not only say so; packets between these pods are small enough for this damage
	onHost(t, second, "ip", "link", "set", device(first()), "mtu", "1400")
	eventually(t, 10*time.Second, "the device has its MTU again", func() error {
		out, err := second.Exec(t.Context(), "cat", "/sys/class/net/"+device(first())+"/mtu")
		if err == nil && strings.TrimSpace(out) != strconv.Itoa(underlayMTU-overhead(first())) {
			err = errors.New(out)
		}
		return err
	})
	back()
	return untilAgentsFollow(t)
}

// renewCertificate: the certificate authority stays, as it does when kubeadm renews.
func renewCertificate(t *testing.T) time.Duration {
	first := suite.Node(1)
	const file = "/etc/kubernetes/pki/apiserver.crt"
	before, err := os.ReadFile(first.Path(file))
	must(t, err)
	onHost(t, first.Machine, "kubeadm", "certs", "renew", "apiserver")
	after, err := os.ReadFile(first.Path(file))
	must(t, err)
	if string(before) == string(after) {
		t.Fatal("the certificate is the old one")
	}
	return restartAPI(t)
}

// restartAPI ends the API server's process and returns how long after its return the agents are up to date.
func restartAPI(t *testing.T) time.Duration {
	t.Helper()
	onHost(t, suite.Node(1).Machine, "pkill", "-KILL", "-x", "kube-apiserver")
	eventually(t, time.Minute, "the API server is gone", func() error {
		if apiAnswers() == nil {
			return errors.New("it still answers")
		}
		return nil
	})
	return untilAgentsFollow(t)
}

// replaceToken puts another token in the place of the agents', as the kubelet does when it renews one, and has the first one
// refused at once, also to an agent that has not looked at the file again: it is bound to the agent's Pod, and that is deleted
// behind the back of a kubelet that is off meanwhile.
func replaceToken(t *testing.T) time.Duration {
	nodes := suite.Nodes()[1:3]
	before := agentPods(t)
	token := boundToken(t, "second")
	for _, n := range nodes {
		must(t, n.StopKubelet(t.Context()))
		t.Cleanup(func() { _ = n.StartKubelet() }) // it may run already
		name, _, _ := strings.Cut(before[n.Name], " ")
		placeToken(t, n, token)
		_, err := suite.Kubectl(t.Context(), "-n", "kube-flannel", "delete", "pod", name, "--force", "--grace-period=0")
		must(t, err)
	}
	took := restartAPI(t)
	for _, n := range nodes {
		must(t, n.StartKubelet())
	}
	eventually(t, 2*time.Minute, "the DaemonSet's new pods run", func() error {
		now := agentPods(t)
		for _, n := range nodes {
			if now[n.Name] == before[n.Name] {
				return fmt.Errorf("the agent on %s is %s", n.Name, now[n.Name])
			}
		}
		_, err := suite.Kubectl(t.Context(), "-n", "kube-flannel", "rollout", "status", "daemonset/kube-flannel-ds", "--timeout=1s")
		return err
	})
	return took
}

// boundToken makes a token of the agents' account that is good for as long as the Secret of that name is there.
func boundToken(t *testing.T, secret string) string {
	t.Helper()
	must(t, suite.Apply(t.Context(), fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: %s, namespace: kube-flannel}}", secret)))
	t.Cleanup(func() {
		_, err := suite.Kubectl(contextOfCleanup(), "-n", "kube-flannel", "delete", "secret", secret, "--ignore-not-found")
		if err != nil {
			t.Error(err)
		}
	})
	token, err := suite.Kubectl(t.Context(), "-n", "kube-flannel", "create", "token", "flannel", "--bound-object-kind", "Secret",
		"--bound-object-name", secret, "--duration", "1h")
	must(t, err)
	return token
}

// placeToken puts a token where the agent of a node finds its own, in one step.
func placeToken(t *testing.T, n *cluster.Node, token string) {
	t.Helper()
	_, uid, _ := strings.Cut(agentPods(t)[n.Name], " ")
	files, err := filepath.Glob(n.Path("/var/lib/kubelet/pods/" + uid + "/volumes/kubernetes.io~projected/*/..data/token"))
	if err != nil || len(files) != 1 {
		t.Fatalf("find the token of the agent on %s: %v, %v", n.Name, files, err)
	}
	must(t, os.WriteFile(files[0]+".new", []byte(token), 0o644))
	must(t, os.Rename(files[0]+".new", files[0]))
}

// bootWithoutAPI is D-04. The kubelet of a node that booted starts no pod before it has heard from the API server, whatever
// the network: so the agent runs as a service here, as it does where the network must not depend on that.
func bootWithoutAPI(t *testing.T) time.Duration {
	n, all := suite.Node(3), members(t)
	restarts, err := restartCounts(t, podOnEachNode(t)[2:])
	must(t, err)
	conf, err := suite.Kubectl(t.Context(), "-n", "kube-flannel", "get", "configmap", "kube-flannel-cfg", "-o", `jsonpath={.data.net-conf\.json}`)
	must(t, err)
	program, err := os.ReadFile(filepath.Join("..", "..", "bin", "flanneld"))
	must(t, err)

	back := takeAPIAway(t)
	must(t, n.PowerOff(t.Context()))
	must(t, n.PowerOn(t.Context()))
	all[2].node = suite.Node(3)
	const dir = "/run/weft-service/"
	must(t, os.MkdirAll(n.Path(dir), 0o755))
	must(t, os.WriteFile(n.Path(dir+"flanneld"), program, 0o755))
	must(t, os.WriteFile(n.Path(dir+"net-conf.json"), []byte(conf), 0o644))
	service := n.Command(contextOfCleanup(), "env", "NODE_NAME="+n.Name, dir+"flanneld", "--kubeconfig-file=/etc/kubernetes/kubelet.conf",
		"--net-config-path="+dir+"net-conf.json", "--ip-masq", "--healthz-port=18081")
	var log strings.Builder
	service.Stdout, service.Stderr = &log, &log
	start := time.Now()
	must(t, service.Start())
	stop := func() {
		_, _ = n.Exec(contextOfCleanup(), "pkill", "-TERM", "-f", dir+"flanneld") // it may be gone
		_ = service.Wait()                                                        // it ends as asked
	}
	stopped := false
	defer func() {
		if !stopped {
			stop()
			t.Logf("the agent said:\n%s", log.String())
		}
	}()
	eventually(t, time.Minute, n.Name+" is as it was", func() error {
		if diff := differencesOn(t, all[2:], all); diff != "" {
			return errors.New(diff)
		}
		for _, file := range []string{"/run/flannel/subnet.env", "/etc/cni/net.d/10-flannel.conflist"} {
			if _, err := os.Stat(n.Path(file)); err != nil {
				return err
			}
		}
		out, err := n.Exec(t.Context(), curl("http://127.0.0.1:18081/readyz")...)
		if err == nil && !strings.Contains(out, "stale: API away since") {
			err = errors.New(out)
		}
		return err
	})
	took := time.Since(start)
	onHost(t, suite.Node(1).Machine, "ping", "-c", "2", "-i", "0.2", "-W", "2", all[2].vtep(first()))
	stopped = true
	stop()
	back()
	waitRestarted(t, podOnEachNode(t)[2:], restarts)
	return took
}
