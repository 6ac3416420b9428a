// Package e2e tests the product on a real cluster: kubeadm, kubelets, containerd, kube-proxy and CoreDNS, three nodes, no
// packet leaving the machine. Only what no cheaper test can prove belongs here.
//
// The tests share one cluster, which the first of them finds without a network. Names that begin with an id, such as C02,
// are cases of the collection of field reports.
package e2e
