package watch

import "context"

// demand runs something while it is wanted.
type demand struct {
	wanted chan bool // holds the latest word that was not heard yet
	run    func(context.Context)
	forget func() // after it has ended
}

func newDemand(run func(context.Context), forget func()) *demand {
	return &demand{wanted: make(chan bool, 1), run: run, forget: forget}
}

// want says whether it is wanted. Only one goroutine may.
func (d *demand) want(on bool) {
	select {
	case <-d.wanted:
	default:
	}
	d.wanted <- on
}

// loop follows the word until ctx ends.
func (d *demand) loop(ctx context.Context) {
	stop := func() {}
	running := false
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			return
		case on := <-d.wanted:
			if on == running {
				continue
			}
			if running = on; !on {
				stop()
				d.forget()
				stop = func() {}
				continue
			}
			stop = start(ctx, d.run)
		}
	}
}

// start runs f; what it returns ends it and waits for that.
func start(ctx context.Context, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); f(ctx) }()
	return func() { cancel(); <-done }
}
