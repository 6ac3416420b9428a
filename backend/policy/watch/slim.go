package watch

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// slim is a value in the clothes of an API object, as client-go wants to see it on the way from the decoder to the table.
type slim[V any] struct {
	metav1.Object // nil: nothing but the two names is asked for
	parsed[V]
}

// GetNamespace is part of the key under which client-go keeps a list that arrives as a stream.
func (s *slim[V]) GetNamespace() string { return s.namespace }

// GetName is the other part.
func (s *slim[V]) GetName() string { return s.name }

// GetObjectKind says nothing: nobody encodes a slim.
func (s *slim[V]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the same one, as values never change.
func (s *slim[V]) DeepCopyObject() runtime.Object { return s }
