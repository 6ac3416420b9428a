package watch

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// slim is a value in the clothes of an API object, as client-go wants to see it on the way from the decoder to the table.
type slim[V any] struct {
	metav1.Object // nil: client-go asks for nothing but what is below
	parsed[V]
	version string
}

func slimOf[V any](p parsed[V], obj any) *slim[V] {
	s := &slim[V]{parsed: p}
	if about, err := meta.Accessor(obj); err == nil {
		s.version = about.GetResourceVersion()
	}
	return s
}

// GetNamespace is part of the key under which client-go keeps a list that arrives as a stream.
func (s *slim[V]) GetNamespace() string { return s.namespace }

// GetName is the other part.
func (s *slim[V]) GetName() string { return s.name }

// GetResourceVersion is what client-go remembers of the newest one.
func (s *slim[V]) GetResourceVersion() string { return s.version }

// GetObjectKind says nothing: nobody encodes a slim.
func (s *slim[V]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the same one, as values never change.
func (s *slim[V]) DeepCopyObject() runtime.Object { return s }
