// Package cluster runs a real Kubernetes cluster on this machine: kubeadm, kubelets, containerd and kube-proxy in nodes
// made of namespaces, joined by a network that is a namespace too. No packet leaves the machine.
//
//	outside 192.0.2.10 ── fabric (routes; 192.0.2.1, 172.30.0.1) ── node-1 172.30.0.11
//	                                                             ├─ node-2 172.30.0.12
//	                                                             └─ node-3 172.30.0.13
//
// The fabric knows no pod address. A packet that reaches it with a pod's address as its source gets no answer, which is
// how tests see that masquerading works.
package cluster
