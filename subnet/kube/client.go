package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
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

	way contact // whether the server is reached; any request tells
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
	config, err := restConfig(o)
	if err != nil {
		return nil, err
	}
	// Protobuf is decoded in a third of JSON's time and memory.
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.QPS, config.Burst = 20, 40
	if o.UserAgent != "" {
		config.UserAgent = o.UserAgent
	}
	// A short dial timeout: the kernel sends a lost SYN again after 1, 3, 7, 15 and 31 seconds, and a connection that is
	// waited for would be made that much later than the way is free. Keep-alives find a server that went away silently.
	dialer := &net.Dialer{Timeout: 2 * time.Second, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3,
	}}
	config.Dial = dialer.DialContext
	if o.Dial != nil {
		config.Dial = o.Dial
	}
	c := &Client{Server: config.Host}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return witness{next, &c.way} })
	if c.Interface, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make a client for the API server %s: %w", config.Host, err)
	}
	return c, nil
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
		return nil, fmt.Errorf("use kubeconfig file %q and API URL %q: %w", o.KubeconfigFile, o.APIURL, err)
	}
	return config, nil
}

// call bounds one short request. A server that takes twenty seconds for each answer is slow and not away.
func call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 30*time.Second)
}
