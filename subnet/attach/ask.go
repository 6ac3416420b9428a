package attach

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// ErrNotJudged tells that the agent did not say in time that a pod's policies are in the kernel.
var ErrNotJudged = errors.New("the policies of this pod are not in the kernel yet")

// Patience is how long a pod waits for the agent. After that it starts all the same, and its addresses stay held until
// they are judged: a pod that was cut off for a while is better than none, or than one that no policy binds.
const Patience = 2 * time.Second

// reply is the agent's answer.
type reply struct {
	Judged bool   `json:"judged"`
	Reason string `json:"reason,omitempty"`
}

// Ask waits until the agent has judged a pod: its policies are in the kernel, and its addresses are held no longer. Every
// error means that they may still be.
func Ask(ctx context.Context, socket string, n Note) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	line, err := n.render()
	if err != nil {
		return err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotJudged, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })()
	if _, err := c.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("%w: %w", ErrNotJudged, err)
	}
	var r reply
	if err := json.NewDecoder(io.LimitReader(c, mostBytes)).Decode(&r); err != nil {
		return fmt.Errorf("%w: the agent says nothing: %w", ErrNotJudged, errors.Join(ctx.Err(), err))
	}
	if !r.Judged {
		return fmt.Errorf("%w: %s", ErrNotJudged, r.Reason)
	}
	return nil
}

// Serve answers one question on a connection: judge blocks until the pod is judged, or tells why it is not.
func Serve(ctx context.Context, c net.Conn, judge func(context.Context, Note) error) error {
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, Patience+time.Second)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })()
	line, err := bufio.NewReader(io.LimitReader(c, mostBytes)).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read a question: %w", err)
	}
	n, err := ParseNote(line)
	if err != nil {
		return err
	}
	r := reply{Judged: true}
	if err := judge(ctx, n); err != nil {
		r = reply{Reason: err.Error()}
	}
	if err := json.NewEncoder(c).Encode(r); err != nil {
		return fmt.Errorf("answer a question: %w", err)
	}
	return nil
}
