// Package kube turns Nodes of the Kubernetes API into the values of package subnet and back: it watches all Nodes into
// snapshots, and announces the own node by annotations on its Node. Parsing and conflict resolution are pure; only
// source.go, register.go, events.go and client.go talk to the API server.
package kube

import (
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weft-cni/weft/subnet/claim"
)

// DefaultPrefix is flannel's annotation prefix, as the flag takes it.
const DefaultPrefix = "flannel.alpha.coreos.com"

var prefixForm = regexp.MustCompile(`^(?:[a-z0-9_-]+\.)+[a-z0-9_-]+/(?:[a-z0-9_-]+-)?$`)

// ParsePrefix completes and checks the value of --kube-annotation-prefix: "org.com" means "org.com/", "org.com/x" means
// "org.com/x-". Beyond flannel's check it refuses what the API server would refuse in every patch.
func ParsePrefix(s string) (Prefix, error) {
	full := s
	if !strings.Contains(full, "/") {
		full += "/"
	}
	if !strings.HasSuffix(full, "/") && !strings.HasSuffix(full, "-") {
		full += "-"
	}
	if !prefixForm.MatchString(full) {
		return "", fmt.Errorf("annotation prefix %.80q: subnet/kube: prefix must be in a format: fqdn/[0-9a-z-_]*", s)
	}
	all, _ := claim.AllKeys()
	for _, key := range all {
		if problems := validation.IsQualifiedName(full + key); len(problems) > 0 {
			return "", fmt.Errorf("annotation prefix %.80q: the API server refuses the key %.120q: %s", s, full+key, strings.Join(problems, "; "))
		}
	}
	return Prefix(full), nil
}
