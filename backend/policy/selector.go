package policy

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Label is one label of an object.
type Label struct{ Key, Value string }

// Labels are the labels of an object, sorted by key. Objects with equal labels may share one value.
type Labels []Label

// LabelsOf sorts the labels of an API object.
func LabelsOf(m map[string]string) Labels {
	if len(m) == 0 {
		return nil
	}
	l := make(Labels, 0, len(m))
	for k, v := range m {
		l = append(l, Label{k, v})
	}
	slices.SortFunc(l, func(a, b Label) int { return strings.Compare(a.Key, b.Key) })
	return l
}

// Get returns the value of a label. Objects have a handful of labels: a walk is faster than a map, and a fifth of the size.
func (l Labels) Get(key string) (string, bool) {
	for i := range l {
		if l[i].Key == key {
			return l[i].Value, true
		}
	}
	return "", false
}

// Operator is what a Requirement asks of a label.
type Operator uint8

// The operators of matchExpressions. matchLabels is In with one value.
const (
	In Operator = iota
	NotIn
	Exists
	DoesNotExist
)

// Requirement is one condition of a Selector.
type Requirement struct {
	Key    string
	Op     Operator
	Values []string // sorted, each once
}

// Selector is a metav1.LabelSelector, ready to be asked. The zero value is the empty selector, which matches everything.
type Selector struct {
	All []Requirement // all must hold; sorted, each once
}

// NewSelector reads a LabelSelector that is there. (One that is absent has a meaning of its own in each place.)
func NewSelector(ls metav1.LabelSelector) (Selector, error) {
	var s Selector
	for k, v := range ls.MatchLabels {
		s.All = append(s.All, Requirement{Key: k, Op: In, Values: []string{v}})
	}
	for _, e := range ls.MatchExpressions {
		r := Requirement{Key: e.Key}
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			r.Op = In
		case metav1.LabelSelectorOpNotIn:
			r.Op = NotIn
		case metav1.LabelSelectorOpExists:
			r.Op = Exists
		case metav1.LabelSelectorOpDoesNotExist:
			r.Op = DoesNotExist
		default:
			return Selector{}, fmt.Errorf("read a label selector: unknown operator %q", e.Operator)
		}
		if wants := r.Op == In || r.Op == NotIn; wants != (len(e.Values) > 0) {
			return Selector{}, fmt.Errorf("read a label selector: operator %s with %d values", e.Operator, len(e.Values))
		}
		if len(e.Values) > 0 {
			r.Values = slices.Clone(e.Values)
			slices.Sort(r.Values)
			r.Values = slices.Compact(r.Values)
		}
		s.All = append(s.All, r)
	}
	slices.SortFunc(s.All, func(a, b Requirement) int { return strings.Compare(a.String(), b.String()) })
	s.All = slices.CompactFunc(s.All, func(a, b Requirement) bool { return a.String() == b.String() })
	return s, nil
}

// Matches tells whether all requirements hold. A label that is absent satisfies NotIn.
func (s Selector) Matches(l Labels) bool {
	for i := range s.All {
		if !s.All[i].matches(l) {
			return false
		}
	}
	return true
}

func (r *Requirement) matches(l Labels) bool {
	value, has := l.Get(r.Key)
	switch r.Op {
	case In:
		return has && slices.Contains(r.Values, value)
	case NotIn:
		return !has || !slices.Contains(r.Values, value)
	case Exists:
		return has
	}
	return !has
}

// String is the same for Selectors that ask the same in the same words; it is how kubectl writes them.
func (s Selector) String() string {
	words := make([]string, len(s.All))
	for i, r := range s.All {
		words[i] = r.String()
	}
	return strings.Join(words, ",")
}

// String is the requirement in kubectl's spelling.
func (r Requirement) String() string {
	switch r.Op {
	case In:
		return r.Key + " in (" + strings.Join(r.Values, ",") + ")"
	case NotIn:
		return r.Key + " notin (" + strings.Join(r.Values, ",") + ")"
	case Exists:
		return r.Key
	}
	return "!" + r.Key
}
