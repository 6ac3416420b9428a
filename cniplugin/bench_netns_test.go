package main

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// direct is the delegate as a runtime would call it without us, with the same configuration.
func (w *world) direct(verb string, p pod, conf []byte) *exec.Cmd {
	cmd := w.process(verb, p, conf)
	cmd.Path = w.bin + "/bridge"
	return cmd
}

// cost is what calls took: by the clock, and of the processors by the plugin and all it started.
type cost struct{ wall, cpu []time.Duration }

func (c *cost) call(w *world, cmd *exec.Cmd) {
	start := time.Now()
	if out, err := cmd.Output(); err != nil {
		w.Fatalf("%v: %s", err, out)
	}
	c.wall = append(c.wall, time.Since(start))
	c.cpu = append(c.cpu, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
}

// rounds makes ADD and DEL of one pod through each of the two, in turns, so that both meet the same load.
func (w *world) rounds(n int) (add, del [2]cost) {
	w.Helper()
	w.add(w.pod("first")) // makes the bridge
	raw := `{"cniVersion":"1.0.0","name":"cbr0","type":"bridge","bridge":"cni0","hairpinMode":true,"isDefaultGateway":true,"isGateway":true,"ipMasq":false,"mtu":1450,
		"ipam":{"type":"host-local","dataDir":"` + w.file("networks") + `","ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}]}}`
	conf := [2][]byte{[]byte(raw), w.conf()}
	call := [2]func(string, pod, []byte) *exec.Cmd{w.direct, w.process}
	p := w.pod("timed")
	for i := range n {
		for _, which := range []int{i % 2, 1 - i%2} {
			p.id = fmt.Sprintf("timed-%d-%d", i, which)
			add[which].call(w, call[which]("ADD", p, conf[which]))
			del[which].call(w, call[which]("DEL", p, conf[which]))
		}
	}
	return add, del
}

func median(in []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(in))[len(in)/2]
}

// BenchmarkVerbs is the table: each verb through the plugin and straight to the delegate, by the clock and in processor
// time. It says something on a machine at rest only, where the plugin has to cost less than 3 ms; "least" is what is
// left when other processes are in the way.
func BenchmarkVerbs(b *testing.B) {
	w := newWorld(b)
	add, del := w.rounds(max(b.N, 20))
	for verb, c := range map[string][2]cost{"ADD": add, "DEL": del} {
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		for i, name := range []string{"bridge", "flannel"} {
			b.ReportMetric(ms(median(c[i].wall)), verb+"-"+name+"-ms")
			b.ReportMetric(ms(median(c[i].cpu)), verb+"-"+name+"-cpu-ms")
		}
		b.ReportMetric(ms(slices.Min(c[1].wall)-slices.Min(c[0].wall)), verb+"-least-over-ms")
		b.ReportMetric(ms(slices.Min(c[1].cpu)-slices.Min(c[0].cpu)), verb+"-least-over-cpu-ms")
		b.ReportMetric(float64(median(c[1].wall))/float64(median(c[0].wall)), verb+"-ratio")
	}
	b.ReportMetric(0, "ns/op") // the loop as a whole says nothing
}
