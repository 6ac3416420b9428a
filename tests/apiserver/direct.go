package apiserver

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// DirectKubeconfig writes a kubeconfig of the agents' ServiceAccount that does not go through the proxy: TLS and HTTP/2,
// as in a real cluster.
func (a *API) DirectKubeconfig() string {
	a.t.Helper()
	name := filepath.Join(a.dir, "kubeconfig-direct")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q, tls-server-name: kubernetes}}]
users: [{name: agent, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: agent}}]
current-context: test
`, a.direct, filepath.Join(a.dir, "certs", "apiserver.crt"), AgentToken)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return name
}

// Freeze stops kube-apiserver in its tracks, as a host that swaps or a paused machine does: connections stay open and
// nobody answers. Thaw lets it go on.
func (a *API) Freeze() { a.signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (a *API) Thaw() { a.signal(syscall.SIGCONT) }

func (a *API) signal(s syscall.Signal) {
	a.t.Helper()
	if err := a.server.cmd.Process.Signal(s); err != nil {
		a.t.Fatal(err)
	}
}
