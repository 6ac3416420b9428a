// Command flannelstate makes flannel's state on the node it runs on, or judges the state that is there: the tests on the real
// cluster run it on each node.
//
//	flannelstate start < nodes.json    what flannel does when it starts; the first of the nodes is this one, the others are peers
//	flannelstate judge < nodes.json    what a starting flannel would not take as it is, line by line
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/weft-cni/weft/tests/flannelstate"
)

// here is the machine that the program runs on.
type here struct{}

// Input runs a program.
func (here) Input(stdin string, args ...string) (string, error) {
	var out, complaint bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, complaint.String())
	}
	return out.String(), nil
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "flannelstate:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var nodes []flannelstate.Node
	if err := json.NewDecoder(os.Stdin).Decode(&nodes); err != nil || len(nodes) == 0 || len(args) != 1 {
		return fmt.Errorf("want start or judge, and a list of nodes on standard input: %w", err)
	}
	var lines []string
	var err error
	switch args[0] {
	case "start":
		var peers []flannelstate.Peer
		for _, n := range nodes[1:] {
			peers = append(peers, n.Peer())
		}
		lines, err = nodes[0].Start(here{}, peers...)
	case "judge":
		lines, err = nodes[0].Judge(here{})
	default:
		return fmt.Errorf("unknown word %q", args[0])
	}
	for _, l := range lines {
		fmt.Println(l)
	}
	return err
}
