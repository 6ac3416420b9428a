package kube

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestClientReadsAReplacedBundleAndTokenWithinTheRequestThatIsTurnedAway starts with files that fit nothing, and sees each be
// mended by somebody else.
func TestClientReadsAReplacedBundleAndTokenWithinTheRequestThatIsTurnedAway(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Header.Get("Authorization") != "Bearer good" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"}}`)) // the client may be gone
	}))
	defer server.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bundle := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	kubeconfig := func(token string) string {
		return `{"apiVersion":"v1","kind":"Config","current-context":"t","contexts":[{"name":"t","context":{"cluster":"t","user":"t"}}],
			"clusters":[{"name":"t","cluster":{"server":"` + server.URL + `","certificate-authority":"` + filepath.Join(dir, "ca") + `"}}],
			"users":[{"name":"t","user":{"token":"` + token + `"}}]}`
	}
	write("ca", "# nobody\n")
	client, err := NewClient(ClientOptions{KubeconfigFile: write("config", kubeconfig("bad"))})
	if err == nil || client != nil {
		t.Fatalf("a bundle without a certificate is taken: %v", err)
	}
	write("ca", bundle)
	client, err = NewClient(ClientOptions{KubeconfigFile: filepath.Join(dir, "config")})
	if err != nil {
		t.Fatal(err)
	}
	get := func() error {
		_, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		return err
	}
	if err := get(); err == nil || !strings.Contains(Explain(client.Server, err), "credentials") {
		t.Errorf("with a bad token: %v", err)
	}
	write("config", "{half written")
	client.carrier.looked = client.carrier.looked.Add(-reread)
	if err := get(); err == nil {
		t.Error("with a file that is half written")
	}
	write("config", kubeconfig("good"))
	client.carrier.looked = client.carrier.looked.Add(-reread)
	before := asked.Load()
	if err := get(); err != nil || asked.Load() != before+2 {
		t.Errorf("after the file is mended: %v, %d requests", err, asked.Load()-before)
	}
	if got := client.Results(); got["200"] != 1 || got["401"] != 2 {
		t.Errorf("counted %v", got)
	}
}

// TestD03ClientFollowsAServerThatMoves has the kubeconfig of a node written anew, as when the control plane gets another address.
func TestD03ClientFollowsAServerThatMoves(t *testing.T) {
	served := func(prefix string) *httptest.Server {
		return httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != prefix+"/api/v1/nodes/n1" || r.Header.Get("Authorization") != "Bearer good" || r.Host != r.Context().Value(http.LocalAddrContextKey).(net.Addr).String() {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"}}`)) // the client may be gone
		}))
	}
	path := filepath.Join(t.TempDir(), "config")
	point := func(server *httptest.Server, prefix string) {
		t.Helper()
		bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		text := `{"apiVersion":"v1","kind":"Config","current-context":"t","contexts":[{"name":"t","context":{"cluster":"t","user":"t"}}],
			"clusters":[{"name":"t","cluster":{"server":"` + server.URL + prefix + `","certificate-authority-data":"` +
			base64.StdEncoding.EncodeToString(bundle) + `"}}],"users":[{"name":"t","user":{"token":"good"}}]}`
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old, moved, back := served("/k8s/clusters/c-1"), served(""), served("/k8s/clusters/c-1")
	defer moved.Close()
	defer back.Close()
	point(old, "/k8s/clusters/c-1")
	client, err := NewClient(ClientOptions{KubeconfigFile: path})
	if err != nil {
		t.Fatal(err)
	}
	get := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		return err
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ from, to *httptest.Server }{{old, moved}, {moved, back}} {
		prefix := ""
		if step.to == back {
			prefix = "/k8s/clusters/c-1"
		}
		step.from.Close()
		point(step.to, prefix)
		client.carrier.looked = client.carrier.looked.Add(-reread)
		_ = get() // which finds out that nobody is there, and where somebody is
		if err := get(); err != nil {
			t.Errorf("after the server has moved: %v", err)
		}
		if want := "https://" + step.to.Listener.Addr().String() + prefix; client.server() != want {
			t.Errorf("messages name %s, want %s", client.server(), want)
		}
	}
}

func TestD03AServerWithoutASchemeIsSpokenToAsTheFileSpeaksToIts(t *testing.T) {
	dir := t.TempDir()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	text := `{"apiVersion":"v1","kind":"Config","current-context":"t","contexts":[{"name":"t","context":{"cluster":"t"}}],
		"clusters":[{"name":"t","cluster":{"server":"https://192.0.2.9:6443","certificate-authority-data":"` + base64.StdEncoding.EncodeToString(bundle) + `"}}]}`
	if err := os.WriteFile(filepath.Join(dir, "config"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]string{
		"192.0.2.1:6443": "https://192.0.2.1:6443", "[fd00::1]:6443": "https://[fd00::1]:6443", "http://127.0.0.1:8001": "http://127.0.0.1:8001",
	} {
		client, err := NewClient(ClientOptions{KubeconfigFile: filepath.Join(dir, "config"), APIURL: url})
		if err != nil || client.Server != want {
			t.Errorf("%s: %v, server %s, want %s", url, err, client.Server, want)
		}
	}
}

// D-04: a service of the node that boots while its kubeconfig is cut short by a power cut, or not there yet, has a data plane to bring up.
func TestD04APatientClientUsesItsFilesAsSoonAsTheyCanBeUsed(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"}}`)) // the client may be gone
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "config")
	client, err := NewClient(ClientOptions{KubeconfigFile: path, Patient: true})
	if err != nil {
		t.Fatal(err)
	}
	get := func() error {
		client.carrier.looked = client.carrier.looked.Add(-reread)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		return err
	}
	says := func(text string) {
		t.Helper()
		_ = get() // which reads the file
		if err := get(); err == nil || !strings.Contains(client.Reason(), "the API server cannot be asked: ") || !strings.Contains(client.Reason(), text) {
			t.Errorf("%v; the reason is %q, want %q", err, client.Reason(), text)
		}
	}
	says("no such file or directory")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	says("no configuration has been provided")
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	text := `{"apiVersion":"v1","kind":"Config","current-context":"t","contexts":[{"name":"t","context":{"cluster":"t"}}],
		"clusters":[{"name":"t","cluster":{"server":"` + server.URL + `","certificate-authority-data":"` + base64.StdEncoding.EncodeToString(bundle) + `"}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = get()
	if err := get(); err != nil || client.Reason() != "" || client.server() != server.URL {
		t.Errorf("%v, %q, server %s", err, client.Reason(), client.server())
	}
}

// D-03: where the Service's address does not work yet, the flag that the error names has to be enough.
func TestD03TheURLAloneIsAskedInThePodsName(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer of the pod" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"}}`)) // the client may be gone
	}))
	defer server.Close()
	pod := func() (*rest.Config, error) {
		return &rest.Config{Host: "https://192.0.2.1:443", BearerToken: "of the pod", TLSClientConfig: rest.TLSClientConfig{
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		}}, nil
	}
	for _, url := range []string{server.URL, server.Listener.Addr().String()} {
		client, err := NewClient(ClientOptions{APIURL: url, inCluster: pod})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil || client.Server != server.URL {
			t.Errorf("%s: %v, server %s", url, err, client.Server)
		}
	}
	config, err := restConfig(ClientOptions{APIURL: "http://192.0.2.1:8080", inCluster: pod})
	if err != nil || config.BearerToken != "" {
		t.Errorf("the pod's token goes to a server that cannot prove who it is: %v", err)
	}
}
