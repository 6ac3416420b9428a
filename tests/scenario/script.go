package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/txtar"

	"github.com/weft-cni/weft/subnet"
)

// verb is one word of the scripts.
type verb struct {
	usage string
	run   func(s *story, args []string) error
}

// verbs are all words there are. More would be a programming language: beyond these, write a Go test.
func verbs() map[string]verb {
	return map[string]verb{
		"node":    {"node NAME...: machines with a running daemon", (*story).node},
		"peer":    {"peer NAME... or NAME..NAME [KEY=VALUE...]: Nodes without a machine", (*story).peer},
		"set":     {"set NAME KEY=VALUE...: change a Node", (*story).set},
		"leave":   {"leave NAME...: delete Nodes", (*story).leave},
		"kill":    {"kill NAME...: end daemons at once", (*story).kill},
		"start":   {"start NAME [backend=TYPE] [direct=true] [vni=N] [port=N] [mtu=N] [mac=M]: start a daemon, with other settings", (*story).start},
		"do":      {"do NAME COMMAND...: what somebody else does on a machine", (*story).do},
		"fail":    {"fail NAME N ERRNO: the daemon's N-th write from now fails", (*story).fail},
		"api":     {"api away|back", (*story).api},
		"wait":    {"wait DURATION: time passes", (*story).wait},
		"synced":  {"synced: within 5 s every kernel is as the model says", (*story).synced},
		"writes":  {"writes NAME N: how many writes there were between the last two synced", (*story).writes},
		"expect":  {"expect NAME link|addr|neigh|fdb|route: within 5 s it is as the section says", (*story).expect},
		"problem": {"problem NAME ABOUT WORD|none: what a daemon has against a Node or a device", (*story).problem},
		"ping":    {"ping FROM TO [lost]: a packet goes from device to device", (*story).ping},
	}
}

// story is a script that is being played.
type story struct {
	*World
	sections map[string]string
	families []subnet.Family // that the line is about
}

// play runs a script to its end, or to its first error, which names the line.
func (w *World) play(archive *txtar.Archive) error {
	s := &story{World: w, sections: map[string]string{}}
	for _, f := range archive.Files {
		s.sections[f.Name] = string(f.Data)
	}
	n := 0
	for line := range strings.Lines(string(archive.Comment)) {
		n++
		if err := s.line(line); err != nil {
			return fmt.Errorf("line %d: %s: %w", n, strings.TrimSpace(line), err)
		}
	}
	return nil
}

// line plays one line; empty ones and comments are nothing. It is about all families of the lane, unless it begins with one
// of them: "ipv6: do n1 ip link del flannel.1".
func (s *story) line(line string) error {
	words := strings.Fields(line)
	if len(words) == 0 || strings.HasPrefix(words[0], "#") {
		return nil
	}
	s.families = s.lane.Families()
	if name, one := strings.CutSuffix(words[0], ":"); one {
		words = words[1:]
		s.families = slices.DeleteFunc(s.families, func(f subnet.Family) bool { return strings.ToLower(f.String()) != name })
	}
	if len(s.families) == 0 || len(words) == 0 {
		return nil
	}
	known := verbs()
	v, ok := known[words[0]]
	if !ok {
		return fmt.Errorf("unknown word: want one of %v", slices.Sorted(maps.Keys(known)))
	}
	return v.run(s, words[1:])
}
