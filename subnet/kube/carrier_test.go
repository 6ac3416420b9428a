package kube

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
