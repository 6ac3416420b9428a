package watch

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// slim is a value in the clothes of an API object, as client-go wants to see it on the way from the decoder to the table.
// A list of 100,000 is held whole for a moment, so it is no larger than it has to be.
type slim[V any] struct {
	metav1.Object // nil: client-go asks for nothing but what is below
	value         *V
	more          *parsed[V] // when there is more to say than the value
	version       string
	kind          *kind[V]
}

func slimOf[V any](k *kind[V], p parsed[V], obj any) *slim[V] {
	s := &slim[V]{value: p.value, kind: k}
	if p.value == nil || len(p.problems) > 0 || p.note != "" {
		s.more = &p
	}
	if about, err := meta.Accessor(obj); err == nil {
		s.version = about.GetResourceVersion()
	}
	return s
}

func (s *slim[V]) parsed() parsed[V] {
	if s.more != nil {
		return *s.more
	}
	return parsed[V]{key: s.kind.key(s.value), uid: s.kind.uid(s.value), value: s.value}
}

// GetNamespace is part of the key under which client-go keeps a list that arrives as a stream.
func (s *slim[V]) GetNamespace() string { return s.parsed().namespace }

// GetName is the other part.
func (s *slim[V]) GetName() string { return s.parsed().name }

// GetResourceVersion is what client-go remembers of the newest one.
func (s *slim[V]) GetResourceVersion() string { return s.version }

// GetObjectKind says nothing: nobody encodes a slim.
func (s *slim[V]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the same one, as values never change.
func (s *slim[V]) DeepCopyObject() runtime.Object { return s }
