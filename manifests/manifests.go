// Package manifests holds what a cluster administrator applies; it is Go only so that the doctor can compare a running
// installation with it, and so that tests keep it true.
package manifests

import _ "embed"

// KubeFlannel is kube-flannel.yml: the whole installation in one file.
//
//go:embed kube-flannel.yml
var KubeFlannel string
