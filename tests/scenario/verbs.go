package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/tests/terms"
)

func (s *story) node(args []string) error {
	for _, name := range args {
		if err := s.addMachine(name, s.families); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) peer(args []string) error {
	for i, arg := range args {
		if strings.Contains(arg, "=") {
			break
		}
		settings := slices.DeleteFunc(slices.Clone(args[i:]), func(a string) bool { return !strings.Contains(a, "=") })
		if err := s.peers(arg, settings); err != nil {
			return err
		}
	}
	return nil
}

// peers makes the Nodes of NAME or NAME..NAME.
func (s *story) peers(names string, settings []string) error {
	first, last, ranged := strings.Cut(names, "..")
	from, err := number(first)
	if err != nil {
		return err
	}
	to := from
	if ranged {
		if to, err = number(last); err != nil {
			return err
		}
	}
	for i := from; i <= to; i++ {
		r := defaultRecord(fmt.Sprintf("n%d", i), i, s.families)
		if err := assign(settings, s.setter(&r)); err != nil {
			return err
		}
		if err := s.cluster.put(r); err != nil {
			return err
		}
	}
	return nil
}

// assign calls set for each KEY=VALUE. An underscore in a value stands for a blank.
func assign(args []string, set func(key, value string) error) error {
	for _, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%s: want KEY=VALUE", arg)
		}
		if err := set(key, strings.ReplaceAll(value, "_", " ")); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) set(args []string) error {
	if len(args) < 2 {
		return errors.New("want a name and KEY=VALUE")
	}
	return s.cluster.change(args[0], func(r *Record) error { return assign(args[1:], s.setter(r)) })
}

// setter changes a record in the families that the line is about.
func (s *story) setter(r *Record) func(key, value string) error {
	return func(key, value string) error { return r.set(key, value, s.families...) }
}

func (s *story) leave(args []string) error {
	for _, name := range args {
		if err := s.cluster.remove(name); err != nil {
			return err
		}
	}
	return nil
}

// machine finds a machine by the first word of args.
func (s *story) machine(args []string, least int) (*Machine, error) {
	if len(args) < least {
		return nil, fmt.Errorf("want %d words", least)
	}
	m, ok := s.machines[args[0]]
	if !ok {
		return nil, fmt.Errorf("%s is no machine", args[0])
	}
	return m, nil
}

func (s *story) kill(args []string) error {
	for _, name := range args {
		m, err := s.machine([]string{name}, 1)
		if err != nil {
			return err
		}
		s.World.kill(m)
	}
	return nil
}

func (s *story) start(args []string) error {
	m, err := s.machine(args, 1)
	if err != nil {
		return err
	}
	if m.alive {
		return errors.New("it is running")
	}
	if err := assign(args[1:], func(key, value string) error { return m.set(key, value, s.families) }); err != nil {
		return err
	}
	return s.World.start(m)
}

func (s *story) do(args []string) error {
	m, err := s.machine(args, 2)
	if err != nil {
		return err
	}
	m.unruly = m.unruly || args[1] == "nft"
	var errs []error
	done := map[string]bool{} // what is the same in all families is done once
	for _, f := range s.families {
		if command := terms.In(f, strings.Join(args[1:], " ")); !done[command] {
			errs, done[command] = append(errs, m.box.Do(command)), true
		}
	}
	return errors.Join(errs...)
}

func (s *story) fail(args []string) error {
	m, err := s.machine(args, 3)
	if err != nil {
		return err
	}
	errno, ok := map[string]syscall.Errno{
		"EBUSY": syscall.EBUSY, "ENOBUFS": syscall.ENOBUFS, "EINVAL": syscall.EINVAL, "EEXIST": syscall.EEXIST,
	}[args[2]]
	n, err := strconv.Atoi(args[1])
	if err != nil || !ok {
		return errors.New("want a number, and EBUSY, ENOBUFS, EINVAL or EEXIST")
	}
	m.box.failNext(n, errno)
	return nil
}

func (s *story) api(args []string) error {
	if len(args) != 1 || args[0] != "away" && args[0] != "back" {
		return errors.New("want away or back")
	}
	return s.World.leave(args[0] == "away")
}

func (s *story) wait(args []string) error {
	if len(args) != 1 {
		return errors.New("want a duration")
	}
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	return s.pass(d)
}

func (s *story) synced([]string) error {
	if err := s.World.synced(); err != nil {
		return err
	}
	for _, m := range s.machines {
		now := m.box.writes.Load()
		m.wrote, m.counted = now-m.counted, now
	}
	for _, m := range s.living() {
		m.unruly = false
	}
	return nil
}

func (s *story) writes(args []string) error {
	m, err := s.machine(args, 2)
	if err != nil {
		return err
	}
	want, err := strconv.Atoi(args[1])
	if _, ok := m.agent.(inspected); err != nil || !ok {
		return err
	}
	if want *= len(s.families); m.wrote != int64(want) {
		return fmt.Errorf("there were %d, not %d", m.wrote, want)
	}
	return nil
}

func (s *story) expect(args []string) error {
	m, err := s.machine(args, 2)
	if err != nil {
		return err
	}
	want, ok := s.sections[strings.Join(args, " ")]
	if !ok {
		return fmt.Errorf("the file has no section -- %s --", strings.Join(args, " "))
	}
	return s.within(func() error {
		have, err := m.box.Tables()
		if err != nil {
			return err
		}
		for _, f := range s.families {
			list, err := have.of(f).kind(args[1])
			if err != nil {
				return err
			}
			if diff := cmp.Diff(sortedLines(terms.Section(f, want)), lines(list)); diff != "" {
				return fmt.Errorf("kernel (+) differs from the section (-):\n%s", diff)
			}
		}
		return nil
	})
}

func (s *story) problem(args []string) error {
	m, err := s.machine(args, 3)
	if err != nil {
		return err
	}
	return s.within(func() error {
		if args[2] == "none" && !m.agent.complains(args[1], "") || args[2] != "none" && m.agent.complains(args[1], args[2]) {
			return nil
		}
		return errors.New("it is not so")
	})
}

func (s *story) ping(args []string) error {
	from, err := s.machine(args, 2)
	if err != nil {
		return err
	}
	to, err := s.machine(args[1:], 1)
	if err != nil {
		return err
	}
	lost := len(args) > 2 && args[2] == "lost"
	return s.within(func() error {
		for _, f := range s.families {
			err := s.flavour.ping(s.World, f, from, to)
			if lost && err == nil {
				return errors.New("the packet arrived")
			}
			if !lost && err != nil {
				return err
			}
		}
		return nil
	})
}

// sortedLines sorts the lines of a text: in another family's terms they may have another order.
func sortedLines(text string) string {
	list := slices.Collect(strings.Lines(text))
	slices.Sort(list)
	return strings.Join(list, "")
}
