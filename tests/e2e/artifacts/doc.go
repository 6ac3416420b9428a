// Package artifacts builds everything a cluster is made of and keeps it in a cache: Kubernetes, etcd, containerd, runc
// and their friends from Go modules, and a few programs from Debian's packages.
//
// A thing in the cache is found by a key made of all that went into it, so a change of version builds anew and an
// unchanged one is never built twice.
package artifacts
