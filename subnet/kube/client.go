package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
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
}

// Client is a connection to the API server and the URL for messages.
type Client struct {
	kubernetes.Interface
	Server string
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
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for the API server %s: %w", config.Host, err)
	}
	return &Client{Interface: client, Server: config.Host}, nil
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

// call bounds one short request.
func call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 10*time.Second)
}
