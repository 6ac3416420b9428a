// Package node turns a process into a machine: a set of namespaces with a root file system, cgroups and a process 1 of
// its own, in which containerd and the kubelet run as on a real node.
//
// Killing that process 1 is a power cut: the kernel ends everything inside at once and the mounts go with it. What was
// written to the node's disk stays and is there at the next start; /run and /tmp are new.
package node
