package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ClientOptions say which API server to talk to. Without a kubeconfig file and a URL that is the cluster that the
// process runs in; with a URL alone it is that cluster at another address.
type ClientOptions struct {
	KubeconfigFile string // --kubeconfig-file
	APIURL         string // --kube-api-url; wins over the file's server
	UserAgent      string // "weft/VERSION"

	// Patient makes a client also of files that cannot be used yet: its requests fail with what is wrong with them, until they can.
	Patient bool

	// Dial makes connections; nil means from the network namespace of the process.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	inCluster func() (*rest.Config, error) // nil means rest.InClusterConfig
}

// Client is a connection to the API server and its URL, as it was when the client was made, without a password.
type Client struct {
	kubernetes.Interface
	Server string

	way     contact // whether the server is reached; any request tells
	carrier *carrier

	// mu protects results, which requests write and metrics read.
	mu      sync.Mutex
	results map[string]int64 // how often each result came
}

// The results of requests that are no HTTP status code.
const (
	ResultUnreachable = "unreachable" // no answer
	ResultStale       = "stale"       // a list that is older than what is known
)

// Results tells how often each result of a request has come: "200", "410", ResultUnreachable.
func (c *Client) Results() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.results)
}

// count notes the result of a request.
func (c *Client) count(result string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results[result]++
}

// Reason says why the API server is not reached, or "" while it is or nothing was asked of it yet.
func (c *Client) Reason() string {
	if _, _, cause := c.way.state(); cause != nil {
		return Explain(c.server(), cause)
	}
	return ""
}

// server is the URL for messages: the server may be elsewhere by now.
func (c *Client) server() string {
	if c.carrier == nil { // of a test
		return c.Server
	}
	return c.carrier.current().server.Redacted()
}

// NewClient makes a client. It does not talk to the server; errors concern files and addresses, and may go away when
// those are mended.
func NewClient(o ClientOptions) (*Client, error) {
	load := func() (*rest.Config, error) { return loadConfig(o) }
	config, err := load()
	bad := err
	switch {
	case bad != nil && !o.Patient:
		return nil, bad
	case bad != nil:
		config = talk(&rest.Config{Host: nowhere}, o)
	}
	c := &Client{Server: Redacted(config.Host), results: map[string]int64{}}
	if c.carrier, err = newCarrier(config, load); err == nil {
		c.carrier.refuse(bad)
		c.Server = c.server() // with a scheme, where the configuration has none
		c.Interface, err = kubernetes.NewForConfigAndClient(config, &http.Client{Transport: witness{next: c.carrier, client: c}})
	}
	if err != nil {
		return nil, fmt.Errorf("make a client for the API server %s: %w", c.Server, err)
	}
	return c, nil
}

// Redacted is a server's address without the password that it may have in it, for messages.
func Redacted(server string) string {
	u, err := url.Parse(server)
	if err != nil || u.User == nil {
		return server
	}
	return u.Redacted()
}

// loadConfig reads the files.
func loadConfig(o ClientOptions) (*rest.Config, error) {
	config, err := restConfig(o)
	if err != nil {
		return nil, err
	}
	if err := inlineCA(config); err != nil {
		return nil, err
	}
	return talk(config, o), nil
}

// nowhere stands for a server that no file names yet.
const nowhere = "https://kubeconfig.invalid"

// talk sets how we talk.
func talk(config *rest.Config, o ClientOptions) *rest.Config {
	// Protobuf is decoded in a third of JSON's time and memory.
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.QPS, config.Burst = 20, 40
	if o.UserAgent != "" {
		config.UserAgent = o.UserAgent
	}
	config.Dial = NewDialer().DialContext
	if o.Dial != nil {
		config.Dial = o.Dial
	}
	return config
}

// restConfig says where the server is and who we are. A URL alone takes the place of the kubernetes Service's address, which a pod
// may not reach before kube-proxy runs; who we are is what the pod says all the same, to a server that can prove who it is.
func restConfig(o ClientOptions) (*rest.Config, error) {
	inCluster := o.inCluster
	if inCluster == nil {
		inCluster = rest.InClusterConfig
	}
	if o.KubeconfigFile == "" && o.APIURL != "" && !strings.HasPrefix(strings.ToLower(o.APIURL), "http://") {
		if config, err := inCluster(); err == nil { // else we are in no pod
			config.Host = o.APIURL
			return config, nil
		}
	}
	if o.KubeconfigFile == "" && o.APIURL == "" {
		config, err := inCluster()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("find the API server: not in a pod (KUBERNETES_SERVICE_HOST is not set), and neither --kubeconfig-file nor --kube-api-url is given")
		}
		if err != nil {
			return nil, fmt.Errorf("use the pod's ServiceAccount: %w", err)
		}
		return config, nil
	}
	if file, err := clientcmd.BuildConfigFromFlags("", o.KubeconfigFile); o.KubeconfigFile != "" && err == nil && o.APIURL != "" &&
		!strings.Contains(o.APIURL, "://") && strings.HasPrefix(file.Host, "https://") {
		o.APIURL = "https://" + o.APIURL // else it would be http, and the file's CA and credentials would not be used
	}
	config, err := clientcmd.BuildConfigFromFlags(o.APIURL, o.KubeconfigFile)
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig file %q and API URL %q: %w", o.KubeconfigFile, Redacted(o.APIURL), err)
	}
	return config, nil
}

// call bounds one short request. A server that takes twenty seconds for each answer is slow and not away.
func call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 30*time.Second)
}
