package scenario

import "context"

// Machine is one node: a computer, and the daemon on it while it is alive.
type Machine struct {
	name     string
	box      *counted
	agent    agent
	settings Settings
	mac      [2]string // of its VXLAN devices, by family
	former   []uint16  // ports that its daemon found when it was started, and hears besides
	alive    bool
	blind    bool  // it was started while the API was away, and has not seen the cluster yet
	adopts   bool  // it chose its MAC while it could not be judged: what it announces next counts
	unruly   bool  // somebody broke its traffic rules since they were found right
	counted  int64 // writes at the last "synced"
	wrote    int64 // writes between the last two
}

// agent is the daemon of one machine. After kill it can be started again.
type agent interface {
	// start brings it up. The MACs are those that it has to use.
	start(ctx context.Context, settings Settings, mac [2]string) error
	// kill ends it at once and leaves everything as it is.
	kill()
	// complains reports whether it has something against a Node, or a device, with the given word in it.
	complains(about, word string) bool
	// sees reports whether it has seen the cluster since it was started.
	sees() bool
}

// inspected is an agent that can be looked into.
type inspected interface {
	// turn makes it look at everything once more.
	turn(w *World) error
}
