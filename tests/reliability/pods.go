package reliability

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/subnet/ipam"
)

// Runtime is the container runtime of a node: it makes pods by the conflist that the agent has published, with the plugins
// that the agent has installed.
type Runtime struct {
	node *Node
	cni  *libcni.CNIConfig
}

// Sandbox is a pod that a Runtime made.
type Sandbox struct {
	ID    string
	Addrs []netip.Addr // one of each family of the lane
}

// template is the conflist's template of a bench node: the stock chain, with the files of this node.
func (n *Node) template() ([]byte, error) {
	return json.Marshal(map[string]any{
		"name": "cbr0", "cniVersion": "1.0.0", "plugins": []any{
			map[string]any{
				"type": "flannel", "subnetFile": n.Path("run/subnet.env"), "dataDir": n.Path("cni/flannel"),
				"delegate": map[string]any{"hairpinMode": true, "isDefaultGateway": true}, "ipam": map[string]any{"dataDir": n.Path("cni/networks")},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		},
	})
}

// NewRuntime gives a node its template and waits until the agent has made of it what pods need, and has found the pod that
// was there before.
func NewRuntime(n *Node) (*Runtime, error) {
	text, err := n.template()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(n.Path("cni-conf.json"), text, 0o644); err != nil {
		return nil, err
	}
	r := &Runtime{node: n}
	r.cni = libcni.NewCNIConfigWithCacheDir([]string{n.Path("bin")}, n.Path("cni"), r)
	n.Agent.Kill() // a start makes the collector look for pods that live without a reservation
	if err := n.Agent.Start(Options{}); err != nil {
		return nil, err
	}
	_, err = await(func() error {
		if list, err := r.list(); err != nil || !bytes.Contains(list.Bytes, []byte(n.Path("cni"))) {
			return fmt.Errorf("the conflist of %s: %w", n.Name, errors.Join(err, errNotYet))
		}
		return r.Holds()
	}, patience)
	return r, err
}

// list is the conflist as it is now.
func (r *Runtime) list() (*libcni.NetworkConfigList, error) {
	return libcni.ConfListFromFile(r.node.Path("net.d/" + install.ConflistName))
}

// ExecPlugin implements invoke.Exec: it starts plugins in the node's namespace.
func (r *Runtime) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path)
	var out, errs bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), &out, &errs
	err := r.node.NS.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil {
		return out.Bytes(), nil
	}
	e := &types.Error{}
	if json.Unmarshal(out.Bytes(), e) == nil && e.Msg != "" {
		return nil, e
	}
	return nil, fmt.Errorf("run %s: %w: %s%s", path, err, out.String(), errs.String())
}

// FindInPath implements invoke.Exec.
func (r *Runtime) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// Decode implements invoke.Exec.
func (r *Runtime) Decode(b []byte) (version.PluginInfo, error) {
	return (&version.PluginDecoder{}).Decode(b)
}

// Add makes a pod. A namespace of that name may be there already.
func (r *Runtime) Add(ctx context.Context, id string) (Sandbox, error) {
	l, err := r.list()
	if err != nil {
		return Sandbox{}, err
	}
	if err := execute("ip", "netns", "add", r.name(id)); err != nil {
		return Sandbox{}, err
	}
	result, err := r.cni.AddNetworkList(ctx, l, r.conf(id))
	if err != nil {
		return Sandbox{}, fmt.Errorf("ADD %s: %w", id, err)
	}
	raw, err := json.Marshal(result)
	families := r.node.families()
	if addrs := ipam.ResultAddrs(raw); err == nil && len(addrs) == len(families) {
		return Sandbox{id, addrs}, nil
	}
	return Sandbox{}, fmt.Errorf("ADD %s: want addresses of %v in %s: %w", id, families, raw, errors.Join(err))
}

// Del deletes a pod, and then its namespace.
func (r *Runtime) Del(ctx context.Context, id string) error {
	l, err := r.list()
	if err != nil {
		return err
	}
	if err := r.cni.DelNetworkList(ctx, l, r.conf(id)); err != nil {
		return fmt.Errorf("DEL %s: %w", id, err)
	}
	_ = execute("ip", "netns", "del", r.name(id)) // or it is gone
	return nil
}

// Ping asks addresses from inside a pod.
func (r *Runtime) Ping(id string, addrs ...netip.Addr) error {
	for _, a := range addrs {
		if err := execute("ip", "netns", "exec", r.name(id), "ping", "-c1", "-W5", a.String()); err != nil {
			return err
		}
	}
	return nil
}

// name is that of the pod's namespace; nstest removes those of processes that are gone.
func (r *Runtime) name(id string) string {
	return r.node.NS.Name + "-" + id
}

func (r *Runtime) conf(id string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: id, NetNS: "/run/netns/" + r.name(id), IfName: "eth0"}
}

// Holds reports what the node keeps beside what these pods and the one of the bench need: reservations, records, ports of
// the bridge.
func (r *Runtime) Holds(pods ...Sandbox) error {
	want := texts(r.node.PodAddrs())
	ids := []string{}
	for _, p := range pods {
		want, ids = append(want, texts(p.Addrs)...), append(ids, p.ID)
	}
	all, err := ipam.Store{Dir: r.node.Path("cni/networks/cbr0")}.List()
	if err != nil {
		return err
	}
	var have []string
	for _, a := range all {
		have = append(have, a.Addr.String())
	}
	if err := differ("reservations", want, have); err != nil {
		return err
	}
	records, err := ipam.Records{Dir: r.node.Path("cni/flannel")}.List()
	if err != nil {
		return err
	}
	have = nil
	for _, e := range records {
		have = append(have, e.Name)
	}
	if err := differ("records", ids, have); err != nil {
		return err
	}
	ports, err := r.node.NS.Try("ip", "-o", "link", "show", "master", "cni0")
	if n := strings.Count(ports, "\n"); err == nil && n != len(pods)+1 {
		err = fmt.Errorf("the bridge has %d ports for %d pods", n, len(pods)+1)
	}
	return err
}

func texts[T fmt.Stringer](values []T) []string {
	var out []string
	for _, a := range values {
		out = append(out, a.String())
	}
	return out
}

func differ(what string, want, have []string) error {
	slices.Sort(want)
	slices.Sort(have)
	if slices.Equal(want, have) {
		return nil
	}
	return fmt.Errorf("%s: %q; want %q", what, have, want)
}

// atOnce does something for many at once and gives all errors.
func atOnce(n int, f func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = f(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func execute(command ...string) error {
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, out)
	}
	return nil
}
