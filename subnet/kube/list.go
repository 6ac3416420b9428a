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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Message is an API object with a form in protobuf: *corev1.Node, *corev1.Pod.
type Message[T any] interface {
	*T
	runtime.Object
	Unmarshal([]byte) error
}

// Streamed lists a kind so that each object is cut to what is used as soon as it is decoded. Servers up to 1.33 answer
// a list from their cache in one piece, whatever page size is asked for: of 5,000 Nodes of 60 KB that is 300 MB, and
// client-go would hold it twice. Here one object is held at a time. T is the kind, whole the typed client's List, which
// stands in where there is no real server.
func Streamed[T any, P Message[T]](rc rest.Interface, resource string, slim func(P) runtime.Object,
	whole func(context.Context, metav1.ListOptions) (runtime.Object, error),
) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		real, ok := rc.(*rest.RESTClient)
		if !ok || real == nil { // a fake
			list, err := whole(ctx, o)
			if err != nil {
				return nil, err
			}
			return slimList(list, slim)
		}
		request := real.Get().Resource(resource).VersionedParams(&o, scheme.ParameterCodec)
		if o.ResourceVersion != "" && o.ResourceVersion != "0" {
			// A server that has never seen the version waits for it for three seconds and then asks us to come again, which
			// client-go would do ten times; the one who asks for the list knows better.
			request.MaxRetries(0)
		}
		body, err := request.Stream(ctx)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		list, err := readList(bufio.NewReader(body), slim)
		if err != nil {
			return nil, fmt.Errorf("read the list of %s: %w", resource, err)
		}
		if list.ResourceVersion == "" {
			return nil, fmt.Errorf("read the list of %s: the answer is no list", resource)
		}
		return list, nil
	}
}

// nodes is the kind that a Source watches, cut to what it reads.
func nodes(client *Client, prefix Prefix) Kind {
	nodes := client.CoreV1().Nodes()
	return Kind{
		Name: "nodes", Object: &corev1.Node{}, Watch: nodes.Watch,
		List: Streamed(client.CoreV1().RESTClient(), "nodes",
			func(n *corev1.Node) runtime.Object { return slim(n, prefix) },
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) }),
	}
}

// The wire form of protobuf in Kubernetes: four magic bytes, then runtime.Unknown, whose field 2 is the list, whose
// field 1 is its metadata and whose fields 2 are the objects. All of these are length-delimited.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding
const (
	magic    = "k8s\x00"
	fieldOne = 1<<3 | 2
	fieldTwo = 2<<3 | 2
	// etcd refuses values over 1.5 MB; a length beyond this is no object.
	mostBytes = 32 << 20
)

// readList reads a list in protobuf or JSON.
func readList[T any, P Message[T]](r *bufio.Reader, slim func(P) runtime.Object) (*metav1.List, error) {
	if start, err := r.Peek(len(magic)); err != nil || string(start) != magic {
		var in struct {
			metav1.ListMeta `json:"metadata"`
			Items           []T `json:"items"`
		}
		if err := json.NewDecoder(r).Decode(&in); err != nil {
			return nil, err
		}
		list := &metav1.List{ListMeta: in.ListMeta}
		for i := range in.Items {
			list.Items = append(list.Items, runtime.RawExtension{Object: slim(&in.Items[i])})
		}
		return list, nil
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
			list, err := readItems(bufio.NewReader(body), slim)
			if err == nil && body.N > 0 {
				err = io.ErrUnexpectedEOF // between two objects; a short list must not pass for a whole one
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

// readItems reads the list itself, up to the end of r.
func readItems[T any, P Message[T]](r *bufio.Reader, slim func(P) runtime.Object) (*metav1.List, error) {
	list := &metav1.List{}
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
			return nil, fmt.Errorf("object %d: %w", len(list.Items), err)
		}
		switch tag {
		case fieldOne:
			err = list.ListMeta.Unmarshal(buf)
		case fieldTwo:
			object := P(new(T))
			err = object.Unmarshal(buf)
			list.Items = append(list.Items, runtime.RawExtension{Object: slim(object)})
		}
		if err != nil {
			return nil, fmt.Errorf("object %d: %w", len(list.Items), err)
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

// slimList cuts a whole list down.
func slimList[T any, P Message[T]](whole runtime.Object, slim func(P) runtime.Object) (*metav1.List, error) {
	about, err := meta.ListAccessor(whole)
	if err != nil {
		return nil, fmt.Errorf("read a list: %w", err)
	}
	list := &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: about.GetResourceVersion(), Continue: about.GetContinue()}}
	err = meta.EachListItem(whole, func(o runtime.Object) error {
		if p, ok := o.(P); ok {
			list.Items = append(list.Items, runtime.RawExtension{Object: slim(p)})
		}
		return nil
	})
	return list, err
}
