package reliability

import (
	"syscall"
)

func agentRows() []Fault {
	return []Fault{{
		Name: "SIGTERM, and started again", Times: 50,
		Do: func(b *Bench) error {
			for _, n := range b.Nodes {
				if _, err := n.Agent.Terminate(); err != nil {
					return err
				}
			}
			return startAll(b)
		},
	}, {
		Name: "SIGKILL, and started again", Times: 50, Worst: true,
		Do: func(b *Bench) error {
			for _, n := range b.Nodes {
				if err := n.Agent.Signal(syscall.SIGKILL); err != nil {
					return err
				}
			}
			for _, n := range b.Nodes {
				n.Agent.Kill()
			}
			return startAll(b)
		},
	}}
}

func startAll(b *Bench) error {
	for _, n := range b.Nodes {
		if err := n.Agent.Start(Options{}); err != nil {
			return err
		}
	}
	return nil
}
