// Package backends shows every backend at work between real kernels: nodes are network namespaces on one underlay, each with
// the daemon's own plan, diff and apply in a loop of its own, and with a pod. What the machine's kernel lacks, it shows in the
// virtual machine of tests/vm.
package backends
