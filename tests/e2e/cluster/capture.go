package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Capture is tcpdump running on a machine.
type Capture struct {
	cmd  *exec.Cmd
	file string
	done chan struct{}
}

// Capture starts to record the packets of a device that match a pcap filter; packets that pass after it returns are in.
func (m Machine) Capture(ctx context.Context, device, filter string) (*Capture, error) {
	file, err := os.CreateTemp("", "weft-capture-")
	if err != nil {
		return nil, fmt.Errorf("make a file for the capture: %w", err)
	}
	defer file.Close()
	cmd := namespaceMachine(m.Name, m.netns).Command(ctx, "tcpdump", "-n", "-U", "-i", device, "-w", "-", filter)
	cmd.Stdout = file
	said, err := cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("read what tcpdump says: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start tcpdump on %s: %w", m.Name, err)
	}
	c := &Capture{cmd: cmd, file: file.Name(), done: make(chan struct{})}
	listening := make(chan error, 1)
	go func() {
		defer close(c.done)
		listening <- waitForLine(said, "listening on")
		io.Copy(io.Discard, said)
	}()
	select {
	case err = <-listening:
	case <-time.After(10 * time.Second):
		err = errors.New("tcpdump does not start to listen")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("capture on %s: %w", m.Name, err), c.stop())
	}
	return c, nil
}

func waitForLine(r io.Reader, part string) error {
	lines := bufio.NewReader(r)
	var said strings.Builder
	for {
		line, err := lines.ReadString('\n')
		said.WriteString(line)
		if strings.Contains(line, part) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("tcpdump ended: %s", strings.TrimSpace(said.String()))
		}
	}
}

// Stop ends the capture and returns the packets, one a line, as `tcpdump -nne` prints them.
func (c *Capture) Stop(ctx context.Context) ([]string, error) {
	if err := c.stop(); err != nil {
		return nil, err
	}
	defer os.Remove(c.file)
	out, err := output(exec.CommandContext(ctx, "tcpdump", "-nne", "-r", c.file))
	if err != nil {
		return nil, fmt.Errorf("read the capture: %w", err)
	}
	out = strings.TrimSpace(out)
	if out == "" {
		return nil, nil
	}
	return strings.Split(out, "\n"), nil
}

// stop ends tcpdump. It runs in the machine's network namespace only, so no program stands between us and it that would
// keep the signal to itself.
func (c *Capture) stop() error {
	if err := c.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end tcpdump: %w", err)
	}
	<-c.done
	c.cmd.Wait() // ended by a signal, as asked
	return nil
}
