package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/weft-cni/weft/tests/e2e/artifacts"
	"github.com/weft-cni/weft/tests/lane"
)

// bootstrapToken admits nodes; the cluster is reachable from this machine only.
const bootstrapToken = "abcdef.0123456789abcdef"

// kubeadmConfig is the n-th node's configuration: the first founds the cluster, the others join it.
func (c *Cluster) kubeadmConfig(n int) string {
	registration := fmt.Sprintf(`nodeRegistration:
  name: %s
  criSocket: unix:///run/containerd/containerd.sock
  imagePullPolicy: Never
  taints: []
  kubeletExtraArgs:
  - name: node-ip
    value: %s
`, nodeName(n), c.Config.nodeAddrs(n).of(c.Config.Lane).list())
	if n > 1 {
		return fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken:
    apiServerEndpoint: %q
    token: %s
    unsafeSkipCAVerification: true
`, c.Config.apiServer(), bootstrapToken) + registration
	}
	return fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
bootstrapTokens:
- token: %s
  ttl: 24h0m0s
localAPIEndpoint:
  advertiseAddress: %q
`, bootstrapToken, c.Node(1).IP) + registration + c.clusterConfig()
}

// clusterConfig: etcd need not survive a crash of the machine, only of a node, so it need not wait for the disk. The
// kubelet and kube-proxy settings are those that a machine without CAP_SYS_RESOURCE and with cgroup v1 needs; but for
// crashLoopBackOff: a container that tests kill over and over is not kept waiting for minutes.
func (c *Cluster) clusterConfig() string {
	return fmt.Sprintf(`---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: %s
kubernetesVersion: %s
networking:
  podSubnet: %s
  serviceSubnet: %s
etcd:
  local:
    extraArgs:
    - name: unsafe-no-fsync
      value: "true"
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
oomScoreAdj: 0
failSwapOn: false
imageGCHighThresholdPercent: 100
evictionHard: {nodefs.available: "0%%", imagefs.available: "0%%", memory.available: "50Mi"}
maxPods: 200
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
syncFrequency: 10s
shutdownGracePeriod: 0s
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
conntrack: {maxPerCore: 0, min: 0}
`, c.Config.Name, artifacts.KubernetesVersion, join(c.Config.Lane, lane.Network), join(c.Config.Lane, ServiceNetwork), c.Config.ProxyMode)
}

// apiServer is where the API server listens.
func (c Config) apiServer() string {
	return netip.AddrPortFrom(c.nodeAddrs(1)[c.Lane.First()], 6443).String()
}

// containerdConfig: conf and bin folders are the usual ones; pause is the image this cluster has loaded.
func containerdConfig() string {
	return fmt.Sprintf(`version = 3
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '%s'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['/opt/cni/bin']
  conf_dir = '/etc/cni/net.d'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
`, artifacts.PauseImage)
}

// initControlPlane founds the cluster on the first node and fetches the administrator's kubeconfig.
func (c *Cluster) initControlPlane(ctx context.Context) error {
	first := c.Node(1)
	if _, err := first.Exec(ctx, "kubeadm", "init", "--config", "/etc/cluster/kubeadm.yaml", "--ignore-preflight-errors=all"); err != nil {
		return err
	}
	text, err := os.ReadFile(first.Path("/etc/kubernetes/admin.conf"))
	if err != nil {
		return fmt.Errorf("read the administrator's kubeconfig: %w", err)
	}
	return writeFile(c.Kubeconfig(), string(text))
}

// join adds the n-th node to the cluster and waits until it is registered.
func (c *Cluster) join(ctx context.Context, n int) error {
	_, err := c.Node(n).Exec(ctx, "kubeadm", "join", "--config", "/etc/cluster/kubeadm.yaml", "--ignore-preflight-errors=all")
	if err != nil {
		return err
	}
	return Eventually(ctx, time.Minute, nodeName(n)+" is registered", func() error {
		_, err := c.Kubectl(ctx, "get", "node", nodeName(n))
		return err
	})
}
