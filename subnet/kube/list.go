package kube

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// listNodes lists Nodes, each cut to what we use as soon as it is decoded. Servers up to 1.33 answer a list from their
// cache in one piece, whatever page size is asked for: of 5,000 Nodes of 60 KB that is 300 MB, and client-go would hold
// it twice. Here one Node is held at a time.
func listNodes(ctx context.Context, client *Client, o metav1.ListOptions, prefix Prefix) (*corev1.NodeList, error) {
	core, ok := client.CoreV1().RESTClient().(*rest.RESTClient)
	if !ok || core == nil { // a fake
		list, err := client.CoreV1().Nodes().List(ctx, o)
		return slimList(list, prefix), err
	}
	body, err := core.Get().Resource("nodes").VersionedParams(&o, scheme.ParameterCodec).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	list, err := readNodeList(bufio.NewReader(body), prefix)
	if err != nil {
		return nil, fmt.Errorf("read the list of Nodes: %w", err)
	}
	if list.ResourceVersion == "" {
		return nil, errors.New("read the list of Nodes: the answer is no list")
	}
	return list, nil
}

// The wire form of protobuf in Kubernetes: four magic bytes, then runtime.Unknown, whose field 2 is the NodeList, whose
// field 1 is its metadata and whose fields 2 are the Nodes. All of these are length-delimited.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding
const (
	magic    = "k8s\x00"
	fieldOne = 1<<3 | 2
	fieldTwo = 2<<3 | 2
	// etcd refuses values over 1.5 MB; a length beyond this is no Node.
	mostBytes = 32 << 20
)

func readNodeList(r *bufio.Reader, prefix Prefix) (*corev1.NodeList, error) {
	if start, err := r.Peek(len(magic)); err != nil || string(start) != magic {
		list := &corev1.NodeList{}
		if err := json.NewDecoder(r).Decode(list); err != nil {
			return nil, err
		}
		return slimList(list, prefix), nil
	}
	if _, err := r.Discard(len(magic)); err != nil {
		return nil, err
	}
	for {
		tag, size, err := header(r)
		if err != nil {
			return nil, err
		}
		if tag == fieldTwo {
			body := &io.LimitedReader{R: r, N: int64(size)}
			list, err := readNodes(bufio.NewReader(body), prefix)
			if err == nil && body.N > 0 {
				err = io.ErrUnexpectedEOF // between two Nodes; a short list must not pass for a whole one
			}
			return list, err
		}
		if size > mostBytes {
			return nil, fmt.Errorf("a field of %d bytes", size)
		}
		if _, err := r.Discard(int(size)); err != nil {
			return nil, err
		}
	}
}

// readNodes reads the NodeList itself, up to the end of r.
func readNodes(r *bufio.Reader, prefix Prefix) (*corev1.NodeList, error) {
	list := &corev1.NodeList{}
	var buf []byte
	for {
		if _, err := r.Peek(1); errors.Is(err, io.EOF) {
			return list, nil
		}
		tag, size, err := header(r)
		if err != nil {
			return nil, err
		}
		if size > mostBytes {
			return nil, fmt.Errorf("a field of %d bytes", size)
		}
		if uint64(cap(buf)) < size {
			buf = make([]byte, size)
		}
		buf = buf[:size]
		if _, err := io.ReadFull(r, buf); err != nil {
			return nil, fmt.Errorf("node %d: %w", len(list.Items), err)
		}
		switch tag {
		case fieldOne:
			err = list.ListMeta.Unmarshal(buf)
		case fieldTwo:
			var node corev1.Node
			err = node.Unmarshal(buf)
			list.Items = append(list.Items, *slim(&node, prefix))
		}
		if err != nil {
			return nil, fmt.Errorf("node %d: %w", len(list.Items), err)
		}
	}
}

// header reads a field's tag and length.
func header(r *bufio.Reader) (tag, size uint64, err error) {
	if tag, err = binary.ReadUvarint(r); err != nil {
		return 0, 0, err
	}
	if tag&7 != 2 {
		return 0, 0, fmt.Errorf("field %d is not length-delimited", tag>>3)
	}
	size, err = binary.ReadUvarint(r)
	return tag, size, err
}

func slimList(list *corev1.NodeList, prefix Prefix) *corev1.NodeList {
	if list == nil {
		return nil
	}
	for i := range list.Items {
		list.Items[i] = *slim(&list.Items[i], prefix)
	}
	return list
}
