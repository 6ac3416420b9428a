package daemon

import (
	"context"
	"log/slog"
	"sync"
)

// told keeps the log short: what is true for hours is said once, and again when it changes.
type told struct {
	log *slog.Logger

	mu   sync.Mutex                     // guards last
	last map[string]map[string]struct{} // by topic; a cluster can have thousands of bad Nodes
}

func newTold(log *slog.Logger) *told { return &told{log: log, last: map[string]map[string]struct{}{}} }

func (t *told) info(topic, text string) { t.say(slog.LevelInfo, topic, []string{text}) }
func (t *told) warn(topic, text string) { t.say(slog.LevelWarn, topic, []string{text}) }

// list warns of the lines that are new since the last call with the topic.
func (t *told) list(topic string, lines []string) { t.say(slog.LevelWarn, topic, lines) }

// maxLines bounds what one call writes: a thousand bad Nodes need no thousand lines.
const maxLines = 10

func (t *told) say(level slog.Level, topic string, lines []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	written, more := 0, 0
	now := make(map[string]struct{}, len(lines))
	for _, line := range lines {
		now[line] = struct{}{}
		_, said := t.last[topic][line]
		switch {
		case said:
		case written < maxLines:
			t.log.Log(context.Background(), level, topic, "text", line)
			written++
		default:
			more++
		}
	}
	if more > 0 {
		t.log.Log(context.Background(), level, topic, "more", more)
	}
	t.last[topic] = now
}
