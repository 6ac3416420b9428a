package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/nstest"
)

// Secure is a way in by TLS and HTTP/2, as real clusters have it, whose certificate and token can be replaced.
type Secure struct {
	URL        string
	Kubeconfig string
	CAFile     string
	TokenFile  string

	proxy *Proxy
	host  net.IP
	cert  atomic.Pointer[tls.Certificate]
	token atomic.Pointer[string]
}

// ListenTLS opens such a way in, in a namespace or, when ns is nil, here, with files for an agent: a kubeconfig that names a
// CA bundle and a token.
func (a *API) ListenTLS(t testing.TB, ns *nstest.NS, addr string) *Secure {
	t.Helper()
	listener := listen(t, ns, addr)
	dir := t.TempDir()
	s := &Secure{
		URL: "https://" + listener.Addr().String(), proxy: a.Proxy, host: listener.Addr().(*net.TCPAddr).IP,
		Kubeconfig: filepath.Join(dir, "kubeconfig"), CAFile: filepath.Join(dir, "ca.crt"), TokenFile: filepath.Join(dir, "token"),
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: agent, user: {tokenFile: %q}}]
contexts: [{name: test, context: {cluster: test, user: agent}}]
current-context: test
`, s.URL, s.CAFile, s.TokenFile)
	if err := os.WriteFile(s.Kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.NewAuthority(t)()
	s.NewToken(t, "first")()
	server := &http.Server{
		Handler: s, ConnState: a.Proxy.track, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.cert.Load(), nil }},
	}
	serve(t, server, func() error { return server.ServeTLS(listener, "", "") })
	return s
}

// ServeHTTP refuses every token but the newest.
func (s *Secure) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+*s.token.Load() {
		Answer(http.StatusUnauthorized)(w, r)
		return
	}
	r.Header.Del("Authorization")
	s.proxy.ServeHTTP(w, r)
}

// NewAuthority makes the server use a certificate of a new authority. The CA bundle holds that one alone as soon as the
// function that it returns is called: a kubelet writes it later.
func (s *Secure) NewAuthority(t testing.TB) (publish func()) {
	t.Helper()
	ca, caKey, caDER := s.certificate(t, nil, nil)
	_, key, der := s.certificate(t, ca, caKey)
	s.cert.Store(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})
	return func() { replace(t, s.CAFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})) }
}

// NewToken makes the server accept another token only. The file holds it as soon as the function that it returns is called.
func (s *Secure) NewToken(t testing.TB, token string) (publish func()) {
	t.Helper()
	s.token.Store(&token)
	return func() { replace(t, s.TokenFile, []byte(token)) }
}

// replace writes a file as the kubelet does: all at once.
func replace(t testing.TB, name string, data []byte) {
	t.Helper()
	if err := errors.Join(os.WriteFile(name+".new", data, 0o600), os.Rename(name+".new", name)); err != nil {
		t.Fatal(err)
	}
}

// certificate makes an authority, or, with one, the server's certificate.
func (s *Secure) certificate(t testing.TB, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "weft test " + serial.String()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{s.host}, BasicConstraintsValid: true, IsCA: parent == nil,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c, key, der
}
