package reliability

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ends is how long an agent may take to end, at any moment.
const ends = 2 * time.Second

// agentRows are what happens to the agent itself. What is in the kernel stays, so none of them may cost a packet; they
// heal when every agent is ready again, which is the time a start takes.
func agentRows() []Fault {
	start := "heals: all agents are ready again"
	rows := []Fault{
		{Name: "SIGTERM, then started again", Times: 50, Do: eachAgent(terminate)},
		{Name: "SIGKILL, then started again", Times: 50, Worst: true, Do: eachAgent(kill)},
		{Name: "SIGTERM at a random moment of its start", Times: 20, Do: eachAgent(whileItStarts(terminate))},
		{Name: "SIGKILL at a random moment of its start", Times: 20, Do: eachAgent(whileItStarts(kill))},
		{Name: "killed for want of memory", Do: runOutOfMemory},
		{Name: "killed for want of memory before it is ready", Do: startWithoutMemory},
		{Name: "SIGTERM while the API server hangs", Do: endWhileTheServerHangs},
		{Name: "SIGTERM while the API server cannot be reached", Do: endWithoutServer},
		{Name: "SIGTERM while netlink is slow", Do: endWhileNetlinkIsSlow},
	}
	rows = append(rows, Fault{Name: "SIGKILL in the middle of a repair", Times: 20, Do: killWhileItRepairs,
		Loses: "all entries are gone until the agent runs again"})
	for i := range rows {
		rows[i].Heal, rows[i].Note = 10*time.Second, start
	}
	return append(rows,
		Fault{Name: "SIGSTOP for two minutes, then SIGCONT; meanwhile a node joins", Long: true, Heal: 2 * time.Second,
			Note: "heals: the new node is known everywhere", Do: stopFor(2 * time.Minute), After: strangerLeaves},
		Fault{Name: "SIGSTOP for two seconds, then SIGCONT; meanwhile a node joins", Heal: 2 * time.Second,
			Note: "heals: the new node is known everywhere", Do: stopFor(2 * time.Second), After: strangerLeaves},
		Fault{Name: "two agents on one node", Heal: 10 * time.Second,
			Note: "the second waits and names the first; when that is killed it takes over", Do: twoAgents},
		Fault{Name: "not ready is told", Note: "heals: /readyz says that the own device cannot be made",
			Loses: "another device has the port, and ours is gone", Do: blockThePort, Healed: firstIsNotReady, After: freeThePort},
		Fault{Name: "ready is told", Note: "heals: from the port being free again",
			Loses: "another device has the port, and ours is gone", Do: blockThenFreeThePort},
	)
}

// eachAgent ends the agents one after the other by some means, and starts them again.
func eachAgent(end func(*Agent) error) func(*Bench) error {
	return func(b *Bench) error {
		for _, n := range b.Nodes {
			if err := end(n.Agent); err != nil {
				return err
			}
			b.Damaged()
			if err := n.Agent.Start(Options{}); err != nil {
				return err
			}
		}
		return nil
	}
}

func kill(a *Agent) error {
	a.Kill()
	return nil
}

// terminate wants a good end, soon.
func terminate(a *Agent) error {
	took, err := a.Terminate()
	if err == nil && took > ends {
		err = fmt.Errorf("it took %v to end; at most %v:\n%s", took, ends, a.Tail())
	}
	return err
}

// whileItStarts ends the agent, starts it and ends it somewhere on its way. A process that has not said a word yet has no
// handler for signals, and needs none.
func whileItStarts(end func(*Agent) error) func(*Agent) error {
	return func(a *Agent) error {
		a.Kill()
		before := len(a.Log())
		if err := a.Start(Options{}); err != nil {
			return err
		}
		_, err := await(func() error {
			if len(a.Log()) == before {
				return errNotYet
			}
			return nil
		}, patience)
		if err != nil {
			return err
		}
		time.Sleep(rand.N(700 * time.Millisecond))
		return end(a)
	}
}

// stopFor stops an agent in its tracks while a node joins the cluster.
func stopFor(d time.Duration) func(*Bench) error {
	return func(b *Bench) error {
		for _, n := range b.Nodes {
			if err := n.Agent.Signal(syscall.SIGSTOP); err != nil {
				return err
			}
		}
		if err := strangerJoins(b); err != nil {
			return err
		}
		time.Sleep(d)
		for _, n := range b.Nodes {
			if err := n.Agent.Signal(syscall.SIGCONT); err != nil {
				return err
			}
		}
		b.Damaged()
		return nil
	}
}

// twoAgents starts a second agent on the first node, which has to keep still, and then takes the first away.
func twoAgents(b *Bench) error {
	n := b.Nodes[0]
	second := newAgent(b, n)
	defer second.Kill()
	second.port = healthPort + 1
	if err := second.Start(Options{}); err != nil {
		return err
	}
	_, err := await(func() error {
		if text, err := second.Get("/readyz"); err == nil || !strings.Contains(text, "another agent manages this node") {
			return fmt.Errorf("the second agent says %q, %w", text, err)
		}
		return nil
	}, patience)
	if err != nil {
		return err
	}
	n.Agent.Kill()
	if _, err = await(second.Ready, patience); err != nil {
		return err
	}
	second.Kill()
	return n.Agent.Start(Options{})
}

// everythingRuns starts the agents that do not run.
func everythingRuns(b *Bench) error {
	for _, n := range b.Nodes {
		if n.Agent.PID() != 0 {
			continue
		}
		if err := n.Agent.Start(Options{}); err != nil {
			return err
		}
	}
	return nil
}

// killWhileItRepairs takes all entries away and kills the agent while it puts them back.
func killWhileItRepairs(b *Bench) error {
	n := b.Nodes[0]
	err := b.Hurt(n, "{ip} route flush dev {device}", "{ip} neigh flush dev {device} nud permanent", "{ip} addr flush dev {device}",
		"ip link set {device} mtu 1300", "bridge fdb flush dev {device}")
	if err != nil {
		return err
	}
	time.Sleep(rand.N(80 * time.Millisecond))
	n.Agent.Kill()
	b.Damaged()
	return n.Agent.Start(Options{})
}

// endWhileTheServerHangs ends an agent that runs and one that starts, both with an API server that takes requests and does
// not answer.
func endWhileTheServerHangs(b *Bench) error {
	b.API.Proxy.SetFault(func(_ http.ResponseWriter, r *http.Request) bool {
		<-r.Context().Done()
		return true
	})
	defer b.API.Proxy.SetFault(nil)
	b.API.Proxy.Cut()
	return endBothWays(b)
}

func endWithoutServer(b *Bench) error {
	b.API.Proxy.Close()
	defer b.API.Proxy.Open()
	return endBothWays(b)
}

// endWhileNetlinkIsSlow ends the agents while somebody else holds the kernel's lock for links nearly all the time.
func endWhileNetlinkIsSlow(b *Bench) error {
	done := make(chan error, 1)
	go func() { done <- links(b, 1000) }()
	time.Sleep(100 * time.Millisecond)
	err := eachAgent(terminate)(b)
	err = errors.Join(err, <-done)
	b.Damaged()
	return err
}

func endBothWays(b *Bench) error {
	time.Sleep(rand.N(time.Second))
	for _, n := range b.Nodes {
		if err := terminate(n.Agent); err != nil {
			return err
		}
		if err := n.Agent.Start(Options{}); err != nil {
			return err
		}
		if err := whileItStarts(terminate)(n.Agent); err != nil {
			return err
		}
	}
	b.Damaged()
	return everythingRuns(b)
}

// cgroup makes a memory cgroup; the caller removes it.
func cgroup(name string) (string, error) {
	dir := filepath.Join("/sys/fs/cgroup/memory", fmt.Sprintf("weft-bench-%d-%s", os.Getpid(), name))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return dir, nil
}

// leaveCgroup removes a cgroup. Who is still in it when a row fails has to go.
func leaveCgroup(n *Node, dir string) {
	if os.Remove(dir) != nil {
		n.Agent.Kill()
		_ = os.Remove(dir) // an empty folder is left at worst
	}
}

func limit(dir string, bytes int) error {
	return os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), fmt.Append(nil, bytes), 0o644)
}

// runOutOfMemory lets a neighbour in the agent's cgroup take the memory. The kernel is
// told to kill the agent first.
func runOutOfMemory(b *Bench) error {
	n := b.Nodes[0]
	dir, err := cgroup(n.Name)
	if err != nil {
		return err
	}
	defer leaveCgroup(n, dir)
	n.Agent.Kill()
	if err := n.Agent.Start(Options{Cgroup: dir}); err != nil {
		return err
	}
	if _, err := await(b.Restored, patience); err != nil {
		return err
	}
	if err := limit(dir, 64<<20); err != nil {
		return err
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", n.Agent.PID()), []byte("1000"), 0o644); err != nil {
		return err
	}
	const hog = `echo $$ > "$0/cgroup.procs" && exec dd if=/dev/zero of=/dev/null bs=60M count=1 2> /dev/null`
	_, _ = n.NS.Try("sh", "-c", hog, dir) // the kernel may kill it, too
	if _, err := await(func() error { return dead(n.Agent) }, patience); err != nil {
		return err
	}
	b.Damaged()
	return n.Agent.Start(Options{})
}

// dead reports whether an agent was killed for want of memory.
func dead(a *Agent) error {
	state, err := a.Wait(time.Millisecond)
	if err != nil {
		return err
	}
	if status, ok := state.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		return fmt.Errorf("it was to be killed for want of memory, and ended with %v", state)
	}
	return nil
}

// startWithoutMemory starts an agent with too little memory, as often as the kubelet would in this time.
func startWithoutMemory(b *Bench) error {
	n := b.Nodes[0]
	dir, err := cgroup(n.Name + "-start")
	if err != nil {
		return err
	}
	defer leaveCgroup(n, dir)
	n.Agent.Kill()
	for size := 6 << 20; size <= 18<<20; size += 6 << 20 {
		if err := limit(dir, size); err != nil {
			return err
		}
		if err := n.Agent.Start(Options{Cgroup: dir}); err != nil {
			return err
		}
		if _, err := await(func() error { return dead(n.Agent) }, 5*time.Second); err != nil {
			n.Agent.Kill() // it got by with that little
		}
	}
	b.Damaged()
	return n.Agent.Start(Options{})
}

// blockThePort deletes the first node's device and puts another in its place that has the port and shares it with nobody.
// The agent is stopped meanwhile, or it would be faster.
func blockThePort(b *Bench) error {
	n := b.Nodes[0]
	return b.still(n, func() error {
		err := b.Hurt(n, "ip link del {device}")
		if err == nil {
			err = b.Hurt(n, "ip link add blocker up type vxlan dstport 4789 external") // in both families
		}
		return err
	})
}

func freeThePort(b *Bench) error {
	return b.Hurt(b.Nodes[0], "ip link del blocker")
}

func firstIsNotReady(b *Bench) error {
	if b.Nodes[0].Agent.Ready() == nil {
		return errors.New("it still says that it is ready")
	}
	return nil
}

func blockThenFreeThePort(b *Bench) error {
	if err := blockThePort(b); err != nil {
		return err
	}
	if _, err := await(func() error { return firstIsNotReady(b) }, patience); err != nil {
		return err
	}
	time.Sleep(rand.N(3 * time.Second)) // it tries again less and less often
	return freeThePort(b)
}
