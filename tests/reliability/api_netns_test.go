package reliability

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/apiserver"
)

// apiRows are what the API server does to its clients. The data plane needs it for news only, so none of them may cost a
// packet; a node that joins meanwhile is what has to be known soon after.
func apiRows() []Fault {
	secure := &doors{}
	rows := []Fault{
		{Name: "API server away for two seconds", Do: outage(away, 2*time.Second), Worst: true},
		{Name: "API server away for ten minutes", Do: outage(away, 10*time.Minute), Long: true},
		{Name: "API server hangs, then goes on", Do: outage(hang, 2*time.Second)},
		{Name: "API server hangs, then is restarted", Do: outage(hangThenRestart, 2*time.Second)},
		{Name: "connections half open: the server's machine is back without them", Do: outage(forget, 2*time.Second)},
		{Name: "API server answers 410", Do: outage(answers(http.StatusGone), 2*time.Second)},
		{Name: "API server answers 429, Retry-After", Do: outage(answers(http.StatusTooManyRequests), 2*time.Second)},
		{Name: "API server answers 500", Do: outage(answers(http.StatusInternalServerError), 2*time.Second)},
		{Name: "watch cut every second", Do: outage(cuts, 3*time.Second)},
		{Name: "API server's certificate of another authority, the CA bundle written later", Do: outage(secure.otherAuthority, 2*time.Second), Before: secure.open},
		{Name: "token replaced, the old one refused", Do: outage(secure.otherToken, time.Second), Before: secure.open},
	}
	for i := range rows {
		rows[i].Heal, rows[i].After = 2*time.Second, strangerLeaves
		rows[i].Note = "a node joins meanwhile; heals: it is known everywhere"
	}
	start := "heals: all agents are ready"
	return append(rows,
		Fault{Name: "API server takes 20 s for each answer", Long: true, Heal: 25 * time.Second, Lines: 2, Do: slow, After: quick,
			Note: "a node joins meanwhile; heals: it is known everywhere, while answers still take as long"},
		Fault{Name: "API server away at a start", Heal: 5 * time.Second, Do: startWithout(away), After: strangerLeaves, Worst: true,
			Note: "agents start from the disk, a node joins, the server comes back; heals: all is known and ready"},
		Fault{Name: "API server answers 500 at a start", Heal: 5 * time.Second, Do: startWithout(answers(http.StatusInternalServerError)), After: strangerLeaves,
			Note: "likewise"},
		Fault{Name: "power cut, and the API server away", Heal: 10 * time.Second, Do: powerCut, After: serverBack,
			Loses: "the machine is off",
			Note:  "heals: the data plane, subnet.env and the conflist are there from the disk"},
		Fault{Name: "API server lags behind: lists from before a node joined", Heal: 10 * time.Second, Do: lags, Note: "in the middle of a run, and at a start; " + start},
		Fault{Name: "5,000 updates in a second", Heal: 10 * time.Second, Do: storm, Note: "of 100 nodes that come, change and go; heals: nothing is left of them"},
	)
}

// away and the others begin an outage and return its end.
func away(b *Bench) (func() error, error) {
	b.API.Proxy.Close()
	return func() error { b.API.Proxy.Open(); return nil }, nil
}

func hang(b *Bench) (func() error, error) {
	b.API.Proxy.Hang()
	return func() error { b.API.Proxy.Unhang(); return nil }, nil
}

func hangThenRestart(b *Bench) (func() error, error) {
	b.API.Proxy.Hang()
	b.API.Proxy.Cut()
	return func() error { b.API.Proxy.Cut(); b.API.Proxy.Unhang(); return nil }, nil
}

func answers(code int) func(*Bench) (func() error, error) {
	return func(b *Bench) (func() error, error) {
		b.API.Proxy.SetFault(apiserver.Answer(code))
		b.API.Proxy.Cut()
		return func() error { b.API.Proxy.SetFault(nil); return nil }, nil
	}
}

func cuts(b *Bench) (func() error, error) {
	stop := b.API.Proxy.CutEvery(time.Second)
	return func() error { stop(); return nil }, nil
}

// forget takes the server's machine away with all it knows of its connections: no packet comes through meanwhile.
func forget(b *Bench) (func() error, error) {
	const block = "add table ip hole; add chain ip hole in { type filter hook input priority -500; }; add rule ip hole in tcp sport %[1]s drop; add rule ip hole in tcp dport %[1]s drop"
	for _, n := range b.Nodes {
		port, err := n.Agent.serverPort()
		if err == nil {
			_, err = n.NS.Try("nft", fmt.Sprintf(block, port))
		}
		if err != nil {
			return nil, err
		}
	}
	b.API.Proxy.Forget()
	return func() error {
		var errs []error
		for _, n := range b.Nodes {
			_, err := n.NS.Try("nft", "delete table ip hole")
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}, nil
}

// serverPort is the port on which the agent finds the API server.
func (a *Agent) serverPort() (string, error) {
	text, err := os.ReadFile(a.kube)
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`http://127\.0\.0\.1:(\d+)`).FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("no server on loopback in %s", a.kube)
	}
	return string(found[1]), nil
}

// outage lets a node join while an outage lasts. What has been known goes on.
func outage(begin func(*Bench) (func() error, error), lasts time.Duration) func(*Bench) error {
	return func(b *Bench) error {
		end, err := begin(b)
		if err != nil {
			return err
		}
		err = strangerJoins(b)
		time.Sleep(lasts)
		err = errors.Join(err, end())
		b.Damaged()
		return err
	}
}

// slow lets a node join while every answer takes twenty seconds, and the watches have to be made anew.
func slow(b *Bench) error {
	b.API.Proxy.SetFault(apiserver.Slow(20 * time.Second))
	b.API.Proxy.Cut()
	err := strangerJoins(b)
	b.Damaged()
	return err
}

func quick(b *Bench) error {
	b.API.Proxy.SetFault(nil)
	return strangerLeaves(b)
}

// startWithout starts all agents in an outage, waits until they have come up from their disks, and ends it.
func startWithout(begin func(*Bench) (func() error, error)) func(*Bench) error {
	return func(b *Bench) error {
		if err := b.kept(); err != nil {
			return err
		}
		for _, n := range b.Nodes {
			n.Agent.Kill()
		}
		end, err := begin(b)
		if err != nil {
			return err
		}
		for _, n := range b.Nodes {
			err = errors.Join(err, n.Agent.Start(Options{}))
		}
		if err == nil {
			_, err = b.Await(patience, func() error { return b.allReady() })
		}
		err = errors.Join(err, strangerJoins(b), end())
		b.Damaged()
		return err
	}
}

func (b *Bench) allReady() error {
	for _, n := range b.Nodes {
		if err := n.Agent.Ready(); err != nil {
			return err
		}
	}
	return nil
}

// kept waits until the cluster as it is now is on every node's disk, which takes an agent a moment: what is newer is lost with
// its process.
func (b *Bench) kept() error {
	_, err := b.Await(patience, func() error {
		for _, n := range b.Nodes {
			data, err := os.ReadFile(n.Path("state/snapshot.json"))
			if err != nil {
				return err
			}
			have, err := subnet.ParseCache(data)
			if err != nil {
				return err
			}
			var names, want []string
			for _, p := range have.Peers {
				names = append(names, p.Name)
			}
			for _, p := range b.peers(n) {
				want = append(want, p.Name)
			}
			if err := differ("peers on the disk of "+n.Name, want, names); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// powerCut takes from the last node what a reboot takes, while the API server is away.
func powerCut(b *Bench) error {
	if err := b.kept(); err != nil {
		return err
	}
	b.API.Proxy.Close()
	n := b.Nodes[len(b.Nodes)-1]
	n.Agent.Kill()
	if err := n.reboot(); err != nil {
		return err
	}
	b.Damaged()
	return n.Agent.Start(Options{})
}

// reboot removes what does not outlive one. The conflist does. The pods are off the net until serverBack: a kubelet
// starts them only after the network is there.
func (n *Node) reboot() error {
	if _, err := n.NS.Try("ip", "link", "set", "cni0", "down"); err != nil {
		return err
	}
	for _, f := range n.families() {
		if _, err := n.NS.Try("ip", "link", "del", device(f)); err != nil {
			return err
		}
	}
	if _, err := n.NS.Try("nft", "flush", "ruleset"); err != nil {
		return err
	}
	run := n.Path("run")
	return errors.Join(os.RemoveAll(run), os.Mkdir(run, 0o755))
}

// bridgeUp puts the pods on the net again. A bridge that is down has lost its IPv6 addresses.
func (n *Node) bridgeUp() error {
	if _, err := n.NS.Try("ip", "link", "set", "cni0", "up"); err != nil {
		return err
	}
	for _, f := range n.families() {
		command := fmt.Sprintf("ip addr replace %s/%d dev cni0", n.Ends[f].CIDR.Addr().Next(), n.Ends[f].CIDR.Bits())
		if f == subnet.IPv6 {
			command += " nodad"
		}
		if _, err := n.NS.Try(strings.Fields(command)...); err != nil {
			return err
		}
	}
	return nil
}

// serverBack checks that the disk was enough, and then lets the API server say the same.
func serverBack(b *Bench) error {
	n := b.Nodes[len(b.Nodes)-1]
	if text, err := n.Agent.Get("/readyz"); err != nil || !strings.Contains(text, "stale") {
		return fmt.Errorf("/readyz says %q, %w; want that the state is stale", text, err)
	}
	for _, name := range []string{"run/subnet.env", "net.d/10-flannel.conflist"} {
		if _, err := os.Stat(n.Path(name)); err != nil {
			return err
		}
	}
	if err := n.bridgeUp(); err != nil {
		return err
	}
	b.API.Proxy.Open()
	_, err := b.Await(patience, func() error {
		if text, err := n.Agent.Get("/readyz"); err != nil || strings.Contains(text, "stale") {
			return fmt.Errorf("/readyz says %q, %w", text, err)
		}
		return nil
	})
	return err
}

// lags shows the agents a list from before the last node had joined: to who runs, after a watch that cannot go on, and to one
// that starts. Who believed it would take the last node's route away.
func lags(b *Bench) error {
	list, err := b.listWithout(b.Nodes[len(b.Nodes)-1].Name)
	if err == nil {
		err = b.kept()
	}
	if err != nil {
		return err
	}
	b.API.Proxy.SetFault(apiserver.Each(
		apiserver.Only(func(r *http.Request) bool { return apiserver.IsWatch(r) && !apiserver.IsStreamedList(r) },
			apiserver.First(2*len(b.Nodes), apiserver.Answer(http.StatusGone))),
		apiserver.Lagging(list)))
	defer b.API.Proxy.SetFault(nil)
	b.API.Proxy.Cut()
	first := b.Nodes[0].Agent
	first.Kill()
	if err := first.Start(Options{}); err != nil {
		return err
	}
	_, err = b.Await(patience, func() error {
		if text, err := first.Get("/metrics"); err != nil || !strings.Contains(text, `weft_api_requests_total{result="stale"}`) {
			return fmt.Errorf("the old list was not met: %w", err)
		}
		return b.Restored()
	})
	b.Damaged()
	return err
}

// listWithout is a list of Nodes in JSON that knows nothing of one of them, and is old.
func (b *Bench) listWithout(name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list, err := b.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	list.Kind, list.APIVersion, list.ResourceVersion = "NodeList", "v1", "2"
	var kept []corev1.Node
	for _, n := range list.Items {
		if n.Name != name {
			kept = append(kept, n)
		}
	}
	list.Items = kept
	return json.Marshal(list)
}

// storm brings each agent five thousand changes of nodes that are not in the cluster, through its watch, as fast as it reads.
func storm(b *Bench) error {
	const nodes, changes = 100, 5000
	met := make(chan string, 100) // each node has a way of its own to the server
	// A server that streams no lists: then everybody makes a plain watch, whatever became of the last one.
	b.API.Proxy.SetFault(apiserver.Each(
		apiserver.Only(apiserver.IsStreamedList, apiserver.Answer(http.StatusUnprocessableEntity)),
		apiserver.Only(apiserver.IsWatch, func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			out := json.NewEncoder(w)
			version := r.URL.Query().Get("resourceVersion")
			for i := range changes + nodes {
				p := b.stranger(1 + i%nodes)
				for _, f := range b.Lane.Families() {
					p.Ends[f].IP = memberAddr(f, i)
				}
				n := &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}}
				n.Name, n.UID, n.ResourceVersion, n.Annotations = p.Name, "storm", version, p.annotations()
				n.Spec.PodCIDRs = texts(podCIDRs(b.Lane, 101+i%nodes))
				n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
				kind := "MODIFIED"
				if i >= changes {
					kind = "DELETED"
				}
				if out.Encode(map[string]any{"type": kind, "object": n}) != nil {
					return true // made just before the cut: it is made anew
				}
			}
			met <- r.Host
			return true
		})))
	b.API.Proxy.Cut()
	defer b.API.Proxy.SetFault(nil)
	for seen := map[string]bool{}; len(seen) < len(b.Nodes); {
		select {
		case host := <-met:
			seen[host] = true
		case <-time.After(patience):
			return errors.New("an agent did not make its watch anew")
		}
	}
	b.Damaged()
	return nil
}

// doors are ways to the API server that have TLS and a token, one a node.
type doors []*apiserver.Secure

// open starts the agents anew on such ways.
func (d *doors) open(b *Bench) error {
	*d = nil
	for _, n := range b.Nodes {
		door := b.API.ListenTLS(b.T, n.NS, "127.0.0.1:0")
		*d = append(*d, door)
		n.Agent.Kill()
		if err := n.Agent.Start(Options{Args: []string{"--kubeconfig-file=" + door.Kubeconfig}}); err != nil {
			return err
		}
	}
	_, err := b.Await(patience, b.Restored)
	return err
}

// otherAuthority gives the servers certificates that the agents cannot trust before their CA bundles are written anew.
func (d *doors) otherAuthority(b *Bench) (func() error, error) {
	var publish []func()
	for _, door := range *d {
		publish = append(publish, door.NewAuthority(b.T))
	}
	b.API.Proxy.Cut()
	return func() error {
		for _, p := range publish {
			p()
		}
		return nil
	}, nil
}

// otherToken replaces the tokens: the servers refuse the old ones from now on.
func (d *doors) otherToken(b *Bench) (func() error, error) {
	for _, door := range *d {
		door.NewToken(b.T, fmt.Sprint("token ", time.Now().UnixNano()))()
	}
	b.API.Proxy.Cut()
	return func() error { return nil }, nil
}
