package reliability

func kernelRows() []Fault {
	return []Fault{
		broken("flannel.1 deleted", "the device is gone until it is made again", "ip link del flannel.1"),
	}
}

// broken is a fault that one command makes, on the first node.
func broken(name, loses, command string) Fault {
	return Fault{Name: name, Loses: loses, Do: func(b *Bench) error { return b.Hurt(b.Nodes[0], command) }}
}
