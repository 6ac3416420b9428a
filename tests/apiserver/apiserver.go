// Package apiserver runs a real etcd and kube-apiserver for tests, behind a small proxy that can cut connections, answer
// errors and listen inside the network namespaces of a test.
//
// The binaries are those that the end-to-end tests build into the cache; without them a test skips. Everything runs on
// the loopback address and is gone when the test ends.
package apiserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// The two users: an administrator, and the ServiceAccount that the manifest gives the agents.
const (
	AdminToken = "admin-of-the-test"
	AgentToken = "agent-of-the-test"
	agentUser  = "system:serviceaccount:kube-flannel:flannel"
)

// patience is how long a server may take to start, in a virtual machine that is emulated, too.
const patience = 5 * time.Minute

// API is a running API server.
type API struct {
	URL        string // of the proxy, on loopback
	Kubeconfig string // file for agents, by the proxy
	Proxy      *Proxy

	t       testing.TB
	dir     string
	program string // kube-apiserver
	direct  string // https URL without the proxy
	etcd    string // URL
	port    string
	server  *process
}

// Start runs an API server until the test ends. The test skips when the binaries are not there.
func Start(t testing.TB) *API {
	t.Helper()
	etcd, program, err := binaries()
	if err != nil {
		t.Skipf("no API server: %v", err)
	}
	a := &API{t: t, dir: t.TempDir(), program: program}
	client, peer, port := freePort(t), freePort(t), freePort(t)
	a.port, a.direct, a.etcd = port, "https://127.0.0.1:"+port, "http://127.0.0.1:"+client
	a.files()
	etcdProcess, err := startProcess(a.dir, etcd, "--data-dir="+filepath.Join(a.dir, "etcd"), "--log-level=error",
		"--listen-client-urls="+a.etcd, "--advertise-client-urls="+a.etcd,
		"--listen-peer-urls=http://127.0.0.1:"+peer, "--initial-advertise-peer-urls=http://127.0.0.1:"+peer,
		"--initial-cluster=default=http://127.0.0.1:"+peer, "--unsafe-no-fsync")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcdProcess.kill)
	t.Cleanup(a.Stop)
	a.Resume()
	a.Proxy = newProxy(t, a.direct)
	a.URL = a.Proxy.Listen(t, nil, "127.0.0.1:0")
	a.Kubeconfig = a.KubeconfigFor(a.URL)
	return a
}

// Stop ends kube-apiserver at once, as a power cut does. etcd keeps its data.
func (a *API) Stop() {
	if a.server != nil {
		a.server.kill()
		a.server = nil
	}
}

// Resume starts kube-apiserver and waits until it is ready.
func (a *API) Resume() {
	a.t.Helper()
	file := func(name string) string { return filepath.Join(a.dir, name) }
	server, err := startProcess(a.dir, a.program, "--etcd-servers="+a.etcd, "--bind-address=127.0.0.1", "--secure-port="+a.port,
		"--advertise-address=192.0.2.1", // of nobody, and asked for where there is no default route
		"--cert-dir="+file("certs"), "--token-auth-file="+file("tokens.csv"), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+file("sa.pub"),
		"--service-account-signing-key-file="+file("sa.key"), "--service-cluster-ip-range=10.96.0.0/16",
		"--disable-admission-plugins=ServiceAccount", "--shutdown-delay-duration=0s", "--endpoint-reconciler-type=none")
	if err != nil {
		a.t.Fatal(err)
	}
	a.server = server
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := a.ready(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			a.t.Fatalf("kube-apiserver is not ready: %v\n%s", err, server.tail())
		case <-server.gone:
			a.t.Fatalf("kube-apiserver ended\n%s", server.tail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Compact makes etcd forget all history, so that a watch cannot go on from where it was.
func (a *API) Compact() {
	a.t.Helper()
	revision := struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}{}
	a.askEtcd("range", map[string]any{"key": "AA=="}, &revision)
	a.askEtcd("compaction", map[string]any{"revision": revision.Header.Revision, "physical": true}, nil)
}

// askEtcd calls etcd's JSON gateway.
func (a *API) askEtcd(verb string, question map[string]any, answer any) {
	a.t.Helper()
	body, err := json.Marshal(question)
	if err != nil {
		a.t.Fatal(err)
	}
	resp, err := http.Post(a.etcd+"/v3/kv/"+verb, "application/json", bytes.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, data)
	}
	if err == nil && answer != nil {
		err = json.Unmarshal(data, answer)
	}
	if err != nil {
		a.t.Fatalf("etcd %s: %v", verb, err)
	}
}

// CutWatches closes every connection through the proxy; new ones are let in.
func (a *API) CutWatches() { a.Proxy.Cut() }

// Admin is a client with all rights that bypasses the proxy.
func (a *API) Admin() *kubernetes.Clientset {
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: a.direct, BearerToken: AdminToken, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1,
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return client
}

// KubeconfigFor writes a kubeconfig of the agents' ServiceAccount for a URL, such as one that the proxy has inside a
// namespace.
func (a *API) KubeconfigFor(url string) string {
	f, err := os.CreateTemp(a.dir, "kubeconfig")
	if err != nil {
		a.t.Fatal(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, `apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q}}]
users: [{name: agent, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: agent}}]
current-context: test
`, url, AgentToken); err != nil {
		a.t.Fatal(err)
	}
	return f.Name()
}

// files writes what kube-apiserver reads.
func (a *API) files() {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err1 := x509.MarshalECPrivateKey(key)
	public, err2 := x509.MarshalPKIXPublicKey(&key.PublicKey)
	tokens := AdminToken + ",admin,1,\"system:masters\"\n" +
		AgentToken + "," + agentUser + ",2,\"system:serviceaccounts,system:serviceaccounts:kube-flannel,system:authenticated\"\n"
	err = errors.Join(err1, err2,
		os.WriteFile(filepath.Join(a.dir, "sa.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}), 0o600),
		os.WriteFile(filepath.Join(a.dir, "sa.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600),
		os.WriteFile(filepath.Join(a.dir, "tokens.csv"), []byte(tokens), 0o600))
	if err != nil {
		a.t.Fatal(err)
	}
}

// ready asks for readiness, which includes that RBAC's own roles are in place.
func (a *API) ready(ctx context.Context) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.direct+"/readyz", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+AdminToken)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 2000)) // only for the message
		return fmt.Errorf("readyz: %s: %s", resp.Status, body)
	}
	return nil
}

// binaries finds etcd and kube-apiserver in the cache, the newest of each.
func binaries() (etcd, apiserver string, err error) {
	cache := os.Getenv("WEFT_CACHE")
	if cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", "", err
		}
		cache = filepath.Join(base, "weft")
	}
	found := [2]string{}
	for i, pattern := range []string{"etcd-*/etcd", "kubernetes-*/kube-apiserver"} {
		list, err := filepath.Glob(filepath.Join(cache, "bin", pattern))
		if err != nil || len(list) == 0 {
			return "", "", fmt.Errorf("no %s in the cache; the end-to-end tests build it (make test)", filepath.Base(pattern))
		}
		found[i] = slices.MaxFunc(list, func(a, b string) int { return modified(a).Compare(modified(b)) })
	}
	return found[0], found[1], nil
}

func modified(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
