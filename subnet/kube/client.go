package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ClientOptions say which API server to talk to. Without a kubeconfig file and a URL that is the cluster that the
// process runs in.
type ClientOptions struct {
	KubeconfigFile string // --kubeconfig-file
	APIURL         string // --kube-api-url; wins over the file's server
	UserAgent      string // "weft/VERSION"

	// Dial makes connections; nil means from the network namespace of the process.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Client is a connection to the API server and the URL for messages.
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
		return Explain(c.Server, cause)
	}
	return ""
}

// NewClient makes a client. It does not talk to the server; errors concern files and addresses, and may go away when
// those are mended.
func NewClient(o ClientOptions) (*Client, error) {
	load := func() (*rest.Config, error) { return loadConfig(o) }
	config, err := load()
	if err != nil {
		return nil, err
	}
	c := &Client{Server: Redacted(config.Host), results: map[string]int64{}}
	if c.carrier, err = newCarrier(config, load); err == nil {
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

// loadConfig reads the files and sets how we talk.
func loadConfig(o ClientOptions) (*rest.Config, error) {
	config, err := restConfig(o)
	if err != nil {
		return nil, err
	}
	if err := inlineCA(config); err != nil {
		return nil, err
	}
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
	return config, nil
}

func restConfig(o ClientOptions) (*rest.Config, error) {
	if o.KubeconfigFile == "" && o.APIURL == "" {
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("find the API server: not in a pod (KUBERNETES_SERVICE_HOST is not set), and neither --kubeconfig-file nor --kube-api-url is given")
		}
		if err != nil {
			return nil, fmt.Errorf("use the pod's ServiceAccount: %w", err)
		}
		return config, nil
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
