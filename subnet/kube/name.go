package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrNoName tells that nothing says which Node this is; only a changed configuration cures it.
var ErrNoName = errors.New("env variables POD_NAME and POD_NAMESPACE must be set, or NODE_NAME")

// NameSource says where the own Node's name comes from: NodeName, else spec.nodeName of the pod.
type NameSource struct {
	NodeName     string // NODE_NAME
	PodName      string // POD_NAME
	PodNamespace string // POD_NAMESPACE
}

// NodeName returns the own Node's name. When it has to ask for the pod it does so until the API server answers or ctx
// ends, and hands what is in the way to report, in words and never twice at a time; report may be nil.
func NodeName(ctx context.Context, client *Client, src NameSource, report func(reason string)) (string, error) {
	if src.NodeName != "" {
		return src.NodeName, nil
	}
	if src.PodName == "" || src.PodNamespace == "" {
		return "", ErrNoName
	}
	defer watchWay(ctx, client, report)()
	for {
		began := time.Now()
		name, err := podNode(ctx, client, src)
		if err == nil {
			return name, nil
		}
		if ctx.Err() != nil {
			return "", fmt.Errorf("find the node of pod %s/%s: %w", src.PodNamespace, src.PodName, context.Cause(ctx))
		}
		switch {
		case report == nil, client.Reason() != "": // that is watched above
		case unreachable(err):
			report(err.Error() + nameHint)
		default:
			report(Explain(client.server(), err) + nameHint)
		}
		pause(ctx, began)
	}
}

const nameHint = "; NODE_NAME from the downward API would make this request needless"

// watchWay reports each reason why the server is not reached, while a request that client-go repeats by itself says
// nothing. The function that it returns ends it.
func watchWay(ctx context.Context, client *Client, report func(string)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := ""
		for ctx.Err() == nil {
			if reason := client.Reason(); reason != last && reason != "" && report != nil {
				last = reason
				report(reason + nameHint)
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return func() { cancel(); <-done }
}

func podNode(ctx context.Context, client *Client, src NameSource) (string, error) {
	ctx, cancel := call(ctx)
	defer cancel()
	pod, err := client.CoreV1().Pods(src.PodNamespace).Get(ctx, src.PodName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if pod.Spec.NodeName == "" {
		return "", fmt.Errorf("pod %s/%s is not on a node yet", src.PodNamespace, src.PodName)
	}
	return pod.Spec.NodeName, nil
}
