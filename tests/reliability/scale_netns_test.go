package reliability

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
)

// scaleRows are large clusters. Most of their nodes have no machine: the three that have program all of them.
func scaleRows() []Fault {
	var before map[*Node]int
	return []Fault{
		// L-08: what is made for an event, or for a watch, goes with it.
		{
			Name: "L-08: 10,000 changes of Nodes while watches are cut", Heal: 10 * time.Second,
			Note:   "heals: as many goroutines as before",
			Before: func(b *Bench) (err error) { before, err = b.goroutines(); return err },
			Do:     func(b *Bench) error { return errors.Join(storm(b), storm(b)) },
			Healed: func(b *Bench) error { return errors.Join(b.Restored(), b.asFewGoroutinesAs(before)) },
		},
		// L-07: an agent that takes events one by one, and retries in line, falls behind.
		{
			Name: "L-07: 200 nodes join a cluster of 1,000", Heal: 2 * time.Second, Long: true,
			Note:   "made as fast as the API server takes them; heals: from the last one being there",
			Before: func(b *Bench) error { return b.crowd(0, 1000) },
			Do:     func(b *Bench) error { err := b.crowd(1000, 1200); b.Damaged(); return err },
			After:  func(b *Bench) error { return b.thin(1000) },
		},
	}
}

// member is node i of a crowd. It lives behind the router.
func member(l lane.Lane, i int) Peer {
	p := Peer{Name: fmt.Sprintf("m%05d", i), Port: 4789}
	for _, f := range l.Families() {
		p.Ends[f] = End{CIDR: memberCIDR(f, i), IP: memberAddr(f, i), MAC: subnet.MAC{0x0a, 1 + byte(f), 4: byte(i >> 8), 5: byte(i)}}
	}
	return p
}

func memberCIDR(f subnet.Family, i int) netip.Prefix {
	if f == subnet.IPv4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(4 + i/16), byte(i % 16 * 16)}), 28)
	}
	base := lane.Network(f).Addr().As16()
	base[6], base[7] = byte((i+0x1000)>>8), byte(i)
	return netip.PrefixFrom(netip.AddrFrom16(base), 64)
}

func memberAddr(f subnet.Family, i int) netip.Addr {
	if f == subnet.IPv4 {
		return netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x72, 14: byte(i >> 8), 15: byte(i)})
}

// crowd adds members from and up to a number, many at once.
func (b *Bench) crowd(from, to int) error {
	var all errgroup.Group
	all.SetLimit(16)
	for i := from; i < to; i++ {
		p := member(b.Lane, i)
		all.Go(func() error { return b.Create(p, p.annotations()) })
		b.Strangers = append(b.Strangers, p)
	}
	if err := all.Wait(); err != nil || from > 0 {
		return err
	}
	_, err := await(b.Restored, patience)
	return err
}

// thin removes the members from a number on.
func (b *Bench) thin(from int) error {
	var all errgroup.Group
	all.SetLimit(16)
	for _, p := range b.Strangers[from:] {
		all.Go(func() error { return b.remove(p.Name) })
	}
	b.Strangers = b.Strangers[:from]
	return all.Wait()
}

// goroutines are those of each agent, as its metrics have them.
func (b *Bench) goroutines() (map[*Node]int, error) {
	line := regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)
	out := map[*Node]int{}
	for _, n := range b.Nodes {
		text, err := n.Agent.Get("/metrics")
		if err != nil {
			return nil, err
		}
		m := line.FindStringSubmatch(text)
		if m == nil {
			return nil, fmt.Errorf("the metrics of %s count no goroutines", n.Name)
		}
		if out[n], err = strconv.Atoi(m[1]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// asFewGoroutinesAs allows for some that serve a request just now.
func (b *Bench) asFewGoroutinesAs(before map[*Node]int) error {
	now, err := b.goroutines()
	for _, n := range b.Nodes {
		if err == nil && now[n] > before[n]+10 {
			err = fmt.Errorf("%s has %d goroutines, before it were %d", n.Name, now[n], before[n])
		}
	}
	return err
}
