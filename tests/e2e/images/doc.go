// Package images makes container images without a registry and without a container engine: a tree of files becomes one
// layer, the layer and a config become a docker archive, which containerd imports.
package images
