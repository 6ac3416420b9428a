package reliability

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"time"
)

// podRows are what happens to pods of the first node. Whatever becomes of them, pods that run lose nothing but what the
// delegate costs them (setsTheMAC), and at the end the node holds what its pods need and no more.
func podRows() []Fault {
	clean := "heals: the node holds what its pods need and no more"
	rows := []Fault{
		{Name: "110 pods made at once, and deleted at once", Loses: setsTheMAC, Most: 2, Do: manyPods},
		{Name: "ADD killed at a random moment, then DEL", Worst: true, Times: 30, Do: killAnAdd},
		{Name: "DEL twice, before its ADD has ended, and with nothing left", Do: oddDels},
		{Name: "a sandbox made anew, and the old one deleted late", Do: remakeASandbox},
		{Name: "pods made and deleted while the agent is killed and started", Loses: setsTheMAC, Most: 2, Do: podsWhile(killTheAgent)},
		{Name: "pods made and deleted while subnet.env is written anew", Loses: setsTheMAC, Most: 2, Do: podsWhile(rewriteTheEnv)},
		{Name: "pods made while the underlay's MTU falls and rises", Loses: setsTheMAC, Most: 2, Do: podsWhile(changeTheMTU)},
		{Name: "200 ADDs and DELs", Loses: setsTheMAC, Most: 2, Do: cycles(200)},
	}
	for i := range rows {
		rows[i].Note, rows[i].Heal = clean, 10*time.Second
		rows[i].Before = func(b *Bench) error {
			if b.runtime != nil {
				return nil
			}
			r, err := NewRuntime(b.Nodes[0])
			b.runtime = r
			return err
		}
		rows[i].Healed = func(b *Bench) error { return errors.Join(b.runtime.Holds(), b.Restored()) }
	}
	return rows
}

// manyPods makes as many pods as a node may have, lets each talk to another node, and deletes them.
func manyPods(b *Bench) error {
	const n = 110
	r, ctx := b.runtime, context.Background()
	pods := make([]Sandbox, n)
	err := atOnce(n, func(i int) (err error) {
		pods[i], err = r.Add(ctx, fmt.Sprintf("many-%d", i))
		return err
	})
	if err == nil {
		err = r.Holds(pods...)
	}
	for i := 0; i < n && err == nil; i++ {
		err = r.Ping(pods[i].ID, b.Nodes[1].PodAddrs()...)
	}
	return errors.Join(err, atOnce(n, func(i int) error { return r.Del(ctx, fmt.Sprintf("many-%d", i)) }))
}

// killAnAdd kills the plugin, as a runtime does that has lost patience, and then deletes the pod.
func killAnAdd(b *Bench) error {
	r := b.runtime
	id := fmt.Sprintf("killed-%d", rand.Int32())
	ctx, cancel := context.WithTimeout(context.Background(), rand.N(60*time.Millisecond))
	defer cancel()
	_, _ = r.Add(ctx, id) // or it was quicker
	b.Damaged()
	return r.Del(context.Background(), id)
}

// oddDels are those of a runtime that is not sure.
func oddDels(b *Bench) error {
	r, ctx := b.runtime, context.Background()
	if _, err := r.Add(ctx, "twice"); err != nil {
		return err
	}
	for range 2 {
		if err := r.Del(ctx, "twice"); err != nil {
			return err
		}
	}
	added := make(chan error, 1)
	go func() {
		_, err := r.Add(ctx, "early")
		added <- err
	}()
	time.Sleep(rand.N(30 * time.Millisecond)) // anywhere in the ADD, or before it, or after
	if err := r.Del(ctx, "early"); err != nil {
		return err
	}
	if err := <-added; err != nil {
		b.T.Logf("the ADD that was overtaken: %v", err) // it may have found its namespace gone
	}
	if err := r.Del(ctx, "early"); err != nil {
		return err
	}
	if _, err := r.Add(ctx, "bare"); err != nil {
		return err
	}
	if err := execute("ip", "netns", "del", r.name("bare")); err != nil {
		return err
	}
	for _, gone := range []string{"cni/flannel/bare", "cni/results/cbr0-bare-eth0", "run/subnet.env"} {
		if err := os.Remove(r.node.Path(gone)); err != nil {
			return err
		}
	}
	b.Damaged()
	return r.Del(ctx, "bare")
}

// remakeASandbox is what the kubelet does when a pause container has died.
func remakeASandbox(b *Bench) error {
	r, ctx := b.runtime, context.Background()
	if _, err := r.Add(ctx, "old"); err != nil {
		return err
	}
	if err := execute("ip", "netns", "del", r.name("old")); err != nil {
		return err
	}
	fresh, err := r.Add(ctx, "new")
	if err != nil {
		return err
	}
	if err := errors.Join(r.Del(ctx, "old"), r.Ping("new", b.Nodes[1].PodAddrs()...)); err != nil {
		return err
	}
	if _, err := await(func() error { return r.Holds(fresh) }, patience); err != nil {
		return err
	}
	return r.Del(ctx, "new")
}

// podsWhile makes and deletes pods, of which every one has to work, while something is done to the node.
func podsWhile(trouble func(context.Context, *Bench) error) func(*Bench) error {
	return func(b *Bench) error {
		ctx, stop := context.WithCancel(context.Background())
		troubled := make(chan error, 1)
		go func() { troubled <- trouble(ctx, b) }()
		err := atOnce(3, func(worker int) error {
			for i := range 5 {
				if err := b.onePod(fmt.Sprintf("while-%d-%d", worker, i)); err != nil {
					return err
				}
			}
			return nil
		})
		stop()
		b.Damaged()
		return errors.Join(err, <-troubled)
	}
}

// onePod is a pod's whole life.
func (b *Bench) onePod(id string) error {
	ctx := context.Background()
	if _, err := b.runtime.Add(ctx, id); err != nil {
		return err
	}
	return errors.Join(b.runtime.Ping(id, b.Nodes[1].PodAddrs()...), b.runtime.Del(ctx, id))
}

func killTheAgent(_ context.Context, b *Bench) error {
	a := b.Nodes[0].Agent
	a.Kill()
	time.Sleep(rand.N(300 * time.Millisecond))
	return a.Start(Options{})
}

// rewriteTheEnv puts the file in the place of itself, as fast as it can.
func rewriteTheEnv(ctx context.Context, b *Bench) error {
	path := b.Nodes[0].Path("run/subnet.env")
	text, err := os.ReadFile(path)
	for err == nil && ctx.Err() == nil {
		if err = os.WriteFile(path+".new", text, 0o644); err == nil {
			err = os.Rename(path+".new", path)
		}
	}
	return err
}

// changeTheMTU lowers the underlay's and raises it again; pods made after each change have what it leaves them.
func changeTheMTU(_ context.Context, b *Bench) error {
	n, r := b.Nodes[0], b.runtime
	for _, underlay := range []int{1400, 1500} {
		if err := b.Hurt(n, fmt.Sprintf("ip link set eth0 mtu %d", underlay)); err != nil {
			return err
		}
		want := fmt.Sprintf("FLANNEL_MTU=%d\n", podMTU(b.Lane, underlay))
		_, err := await(func() error {
			if text, err := os.ReadFile(n.Path("run/subnet.env")); err != nil || !strings.Contains(string(text), want) {
				return fmt.Errorf("subnet.env lacks %s: %s %w", want, text, errors.Join(err, errNotYet))
			}
			return nil
		}, patience)
		if err != nil {
			return err
		}
		id := fmt.Sprintf("mtu-%d", underlay)
		if _, err := r.Add(context.Background(), id); err != nil {
			return err
		}
		link, err := exec.Command("ip", "-n", r.name(id), "-o", "link", "show", "eth0").Output()
		if want := fmt.Sprintf("mtu %d ", podMTU(b.Lane, underlay)); err == nil && !strings.Contains(string(link), want) {
			err = fmt.Errorf("a new pod has %s; want %s", link, want)
		}
		if err := errors.Join(err, r.Del(context.Background(), id)); err != nil {
			return err
		}
	}
	return nil
}

// cycles makes and deletes pods, three at a time.
func cycles(n int) func(*Bench) error {
	return func(b *Bench) error {
		return atOnce(3, func(worker int) error {
			for i := worker; i < n; i += 3 {
				id := fmt.Sprintf("cycle-%d", i)
				if _, err := b.runtime.Add(context.Background(), id); err != nil {
					return err
				}
				if i%5 == 0 {
					_ = exec.Command("ip", "netns", "del", b.runtime.name(id)).Run() // DEL works with it and without
				}
				if err := b.runtime.Del(context.Background(), id); err != nil {
					return err
				}
			}
			return nil
		})
	}
}
