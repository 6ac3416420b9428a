// Package cluster runs a real Kubernetes cluster on this machine: kubeadm, kubelets, containerd and kube-proxy in nodes
// made of namespaces, joined by a network that is a namespace too. No packet leaves the machine.
//
//	outside 192.0.2.10 ── fabric (routes; 192.0.2.1, 172.30.0.1) ── node-1 172.30.0.11
//	                                                             ├─ node-2 172.30.0.12
//	                                                             └─ node-3 172.30.0.13
//
// The fabric knows no pod address. A packet that reaches it with a pod's address as its source gets no answer, which is
// how tests see that masquerading works.
//
// A cluster has IPv4, both families or IPv6 alone, in pods, Services and nodes: Config.Lane. On the underlay Routed node-3 and
// those that come later hang on a network of their own, 172.30.1.0/24 and fd30:0:0:1::/64, with the fabric as its router.
package cluster
