package watch

import apierrors "k8s.io/apimachinery/pkg/api/errors"

// Refused tells that the API server answers and does not let us watch NetworkPolicies: an RBAC that was made for flannel.
func (s *Source) Refused() error {
	if err := s.answers.of(kindPolicies); apierrors.IsForbidden(err) {
		return err
	}
	return nil
}
