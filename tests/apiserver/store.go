package apiserver

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"iter"
	"path"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// Object is anything that has a name and a kind.
type Object interface {
	runtime.Object
	metav1.Object
}

// batch is how many objects are stored at once: etcd takes 128 operations in a transaction.
const batch = 100

// Store puts objects of a resource, "pods", into etcd as the API server itself would, past everything that it does before:
// a hundred thousand come in half a minute. Their kinds must be set. A server that runs learns of them by its watch.
// Many of them are of one revision, so a client whose watch is cut meanwhile may miss some, and has to list.
func (a *API) Store(resource string, objects iter.Seq[Object]) {
	a.t.Helper()
	encoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	var puts []any
	flush := func() {
		if len(puts) > 0 {
			a.askEtcd("txn", map[string]any{"success": puts}, nil)
			puts = nil
		}
	}
	for o := range objects {
		var value bytes.Buffer
		if err := encoder.Encode(o, &value); err != nil {
			a.t.Fatal(fmt.Errorf("store %s %s: %w", resource, o.GetName(), err))
		}
		key := path.Join("/registry", resource, o.GetNamespace(), o.GetName())
		puts = append(puts, map[string]any{"requestPut": map[string]any{"key": text64([]byte(key)), "value": text64(value.Bytes())}})
		if len(puts) == batch {
			flush()
		}
	}
	flush()
}

// Unstore takes all objects of a resource out of etcd.
func (a *API) Unstore(resource string) {
	a.t.Helper()
	first, end := "/registry/"+resource+"/", "/registry/"+resource+"0" // 0 comes after the slash
	a.askEtcd("deleterange", map[string]any{"key": text64([]byte(first)), "range_end": text64([]byte(end))}, nil)
}

// text64 is how etcd's JSON gateway writes bytes.
func text64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
