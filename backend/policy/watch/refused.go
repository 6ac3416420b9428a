package watch

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// errRefused is one sentence, whatever we were refused: the API server's own names list one time and watch the next.
var errRefused = errors.New("the ClusterRole does not let us list and watch networkpolicies.networking.k8s.io")

// Refused tells that the API server answers and does not let us watch NetworkPolicies: an RBAC that was made for flannel.
func (s *Source) Refused() error {
	if apierrors.IsForbidden(s.answers.of(kindPolicies)) {
		return errRefused
	}
	return nil
}
