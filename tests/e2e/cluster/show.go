package cluster

import (
	"context"
	"fmt"
	"net"
	"time"
)

// Show installs the product and shows that it works: two pods on different nodes reach each other by address, by Service
// and by name.
func (c *Cluster) Show(ctx context.Context, p Product) error {
	steps := []struct {
		what string
		do   func() error
	}{
		{"load the product's image and kubectl apply -f manifests/kube-flannel.yml", func() error { return c.Install(ctx, p) }},
		{"wait for every node to be Ready", func() error { return c.WaitReady(ctx, 2*time.Minute) }},
		{"start two pods and a Service", func() error { return c.startDemo(ctx) }},
		{"talk by address, by Service and by name", func() error { return c.talk(ctx) }},
	}
	for _, step := range steps {
		if err := c.progress.Step(step.what, step.do); err != nil {
			return err
		}
	}
	nodes, err := c.Kubectl(ctx, "get", "nodes", "-o", "wide")
	if err != nil {
		return err
	}
	pods, err := c.Kubectl(ctx, "get", "pods", "-A", "-o", "wide")
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Config.Log, `
%s

%s

The cluster is up. In tests/e2e:
  go run ./cmd/cluster kubectl get pods -A
  go run ./cmd/cluster exec node-2 ip route
  go run ./cmd/cluster down
Logs of the nodes: %s/nodes/*/log
`, nodes, pods, c.dir)
	return nil
}

func (c *Cluster) startDemo(ctx context.Context) error {
	err := c.Apply(ctx, demoPod("demo-a", nodeName(1))+demoPod("demo-b", nodeName(c.Config.Nodes))+`---
apiVersion: v1
kind: Service
metadata: {name: demo-b}
spec:
  selector: {app: demo-b}
  ports: [{port: 80, targetPort: 8080}]
`)
	if err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, "wait", "--for=condition=Ready", "pod/demo-a", "pod/demo-b", "--timeout=60s")
	return err
}

func demoPod(name, node string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 0
  containers:
  - {name: agnhost, image: "localhost/agnhost:dev", imagePullPolicy: Never, args: [netexec]}
`, name, node)
}

func (c *Cluster) talk(ctx context.Context) error {
	addrs := map[string]Addrs{}
	for _, pod := range []string{"demo-a", "demo-b"} {
		list, err := c.Kubectl(ctx, "get", "pod", pod, "-o", "jsonpath={.status.podIPs[*].ip}")
		if err != nil {
			return err
		}
		if addrs[pod], err = ParseAddrs(list); err != nil {
			return err
		}
	}
	service, err := c.Kubectl(ctx, "get", "service", "demo-b", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return err
	}
	type try struct{ from, to string }
	tries := []try{{"demo-a", net.JoinHostPort(service, "80")}, {"demo-a", "demo-b.default.svc.cluster.local"}}
	for _, f := range c.Config.Lane.Families() {
		for _, pair := range [][2]string{{"demo-a", "demo-b"}, {"demo-b", "demo-a"}} {
			tries = append(tries, try{pair[0], net.JoinHostPort(addrs[pair[1]].In(f), "8080")})
		}
	}
	for _, try := range tries {
		err := Eventually(ctx, 30*time.Second, try.from+" reaches "+try.to, func() error {
			answer, err := c.Kubectl(ctx, "exec", try.from, "--", "curl", "-gsS", "-m", "5", "http://"+try.to+"/hostname")
			if err == nil {
				fmt.Fprintf(c.Config.Log, "         %s -> %s: answered by %s\n", try.from, try.to, answer)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Machine finds a node, the outside host or the fabric by its name.
func (c *Cluster) Machine(name string) (Machine, error) {
	for _, n := range c.Nodes() {
		if n.Name == name {
			if _, err := n.pid(); err != nil {
				return Machine{}, err
			}
			return n.Machine, nil
		}
	}
	for _, m := range []Machine{c.Outside, c.Fabric} {
		if m.Name == name {
			return m, nil
		}
	}
	return Machine{}, fmt.Errorf("no machine is called %q", name)
}
