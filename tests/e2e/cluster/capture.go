package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Capture is tcpdump running on a machine.
type Capture struct {
	cmd  *exec.Cmd
	file *os.File    // tcpdump's output
	said chan string // tcpdump's lines; closed when it has ended
}

// Capture starts to record the packets of a device that match a pcap filter; packets that pass after it returns are in.
func (m Machine) Capture(ctx context.Context, device, filter string) (*Capture, error) {
	file, err := os.CreateTemp("", "weft-capture-")
	if err != nil {
		return nil, fmt.Errorf("make a file for the capture: %w", err)
	}
	os.Remove(file.Name()) // open is enough, and leaves nothing behind whatever happens
	// The kernel's buffer has a fixed number of bytes for each packet: with the default of 256 KiB only eight fit in.
	cmd := m.Network().Command(ctx, "tcpdump", "--immediate-mode", "-n", "-U", "-s", "256", "-i", device, "-w", "-", filter)
	cmd.Stdout = file
	said, err := cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("read what tcpdump says: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start tcpdump on %s: %w", m.Name, err)
	}
	c := &Capture{cmd: cmd, file: file, said: make(chan string, 100)}
	go func() {
		defer close(c.said)
		for lines := bufio.NewScanner(said); lines.Scan(); {
			c.said <- lines.Text()
		}
	}()
	if _, err := c.line(10*time.Second, "listening on"); err != nil {
		return nil, errors.Join(fmt.Errorf("capture on %s: %w", m.Name, err), c.end())
	}
	return c, nil
}

// line waits until tcpdump says a line with this part.
func (c *Capture) line(limit time.Duration, part string) (string, error) {
	var all []string
	deadline := time.After(limit)
	for {
		select {
		case line, more := <-c.said:
			if !more {
				return "", fmt.Errorf("tcpdump ended: %s", strings.Join(all, "; "))
			}
			if strings.Contains(line, part) {
				return line, nil
			}
			all = append(all, line)
		case <-deadline:
			return "", fmt.Errorf("tcpdump does not say %q but %s", part, strings.Join(all, "; "))
		}
	}
}

// countsLine is what tcpdump answers to SIGUSR1.
var countsLine = regexp.MustCompile(`(\d+) packets? captured, (\d+) packets? received by filter`)

// settledAfter is how often tcpdump must tell the same counts to have written all that it will.
const settledAfter = 20

// catchUp waits until tcpdump has written all packets that the kernel has for it: it would drop the rest when it ends. Packets
// that came after it opened its socket and before the filter was in place count as received, and are never written.
func (c *Capture) catchUp(ctx context.Context) error {
	last, same := "", 0
	return Eventually(ctx, 10*time.Second, "tcpdump has written all packets", func() error {
		if err := c.cmd.Process.Signal(unix.SIGUSR1); err != nil {
			return fmt.Errorf("ask tcpdump for its counts: %w", err)
		}
		line, err := c.line(5*time.Second, "received by filter")
		if err != nil {
			return err
		}
		counts := countsLine.FindStringSubmatch(line)
		if counts == nil {
			return fmt.Errorf("read tcpdump's counts: %q", line)
		}
		captured, _ := strconv.Atoi(counts[1]) // digits only, says the pattern
		received, _ := strconv.Atoi(counts[2])
		if last != counts[0] {
			last, same = counts[0], 0
		}
		if same++; captured < received && same < settledAfter {
			return fmt.Errorf("%d of %d packets are written", captured, received)
		}
		return nil
	})
}

// Stop ends the capture and returns the packets, one a line, as `tcpdump -nne` prints them.
func (c *Capture) Stop(ctx context.Context) ([]string, error) {
	defer c.file.Close()
	if err := errors.Join(c.catchUp(ctx), c.end()); err != nil {
		return nil, err
	}
	if _, err := c.file.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("go back to the capture's first packet: %w", err)
	}
	read := exec.CommandContext(ctx, "tcpdump", "-nne", "-r", "-")
	read.Stdin = c.file
	out, err := output(read)
	if err != nil {
		return nil, fmt.Errorf("read the capture: %w", err)
	}
	out = strings.TrimSpace(out)
	if out == "" {
		return nil, nil
	}
	return strings.Split(out, "\n"), nil
}

// end ends tcpdump. It runs in the machine's network namespace only, so no program stands between us and it that would keep
// the signal to itself.
func (c *Capture) end() error {
	if err := c.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end tcpdump: %w", err)
	}
	for range c.said { // until it is closed
	}
	_ = c.cmd.Wait() // ended by a signal, as asked
	return nil
}
