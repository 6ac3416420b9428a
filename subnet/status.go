package subnet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
)

// StatusName is the name of the status file; it lies beside subnet.env, in /run/flannel.
const StatusName = "weft.json"

const (
	maxStatus = 64 << 10 // a longer file is not ours
	maxReason = 4 << 10  // what a runtime still prints in an event
	maxIfName = 15       // IFNAMSIZ less the closing zero
	maxDevice = 8        // devices that one node can need: a family has one
)

// Status is the agent's word to the CNI plugin: whether pods can be connected on this node, and if not, what is
// missing. It is kept apart from subnet.env, whose text is a contract with other readers.
type Status struct {
	Device  string    `json:"device"`            // the first of Devices, for a plugin that knows of one alone; empty when there is none
	Devices []string  `json:"devices,omitempty"` // overlay devices that pods need, one a family at most; none for backends without any
	Ready   bool      `json:"ready"`
	Reason  string    `json:"reason"` // one line; required when not ready
	Time    time.Time `json:"time"`   // when the agent wrote this
}

// Needs lists the devices that have to be up: of an older agent that is the one which it names.
func (s Status) Needs() []string {
	if len(s.Devices) == 0 && s.Device != "" {
		return []string{s.Device}
	}
	return s.Devices
}

// Equal reports whether two say the same.
func (s Status) Equal(o Status) bool {
	return s.Device == o.Device && slices.Equal(s.Devices, o.Devices) && s.Ready == o.Ready && s.Reason == o.Reason && s.Time.Equal(o.Time)
}

// Render gives the bytes of the status file. The reason may be any text, an error of another program too: it is brought
// to one line of bearable length, since a word that does not get out helps nobody.
func (s Status) Render() ([]byte, error) {
	s.Time, s.Reason = s.Time.UTC(), oneLine(s.Reason)
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("render status: %w", err)
	}
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("render status: %w", err)
	}
	return append(b, '\n'), nil
}

// ParseStatus reads a status file. Unknown keys are let pass, because during an upgrade the agent may be newer than
// the plugin; everything else is refused.
func ParseStatus(b []byte) (Status, error) {
	if len(b) > maxStatus {
		return Status{}, fmt.Errorf("parse status: %d bytes, want at most %d", len(b), maxStatus)
	}
	var in struct {
		Status
		Ready *bool `json:"ready"`
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&in); err != nil {
		return Status{}, fmt.Errorf("parse status: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Status{}, errors.New("parse status: more follows after the object")
	}
	if in.Ready == nil {
		return Status{}, errors.New("parse status: ready is missing")
	}
	in.Status.Ready = *in.Ready
	in.Status.Time = in.Status.Time.UTC()
	if err := in.Status.validate(); err != nil {
		return Status{}, fmt.Errorf("parse status: %w", err)
	}
	return in.Status, nil
}

// oneLine keeps the beginning of a long text, which is where errors name the action.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason-len("...")], "") + "..."
	}
	return text
}

func (s Status) validate() error {
	switch {
	case s.Device != "" && !ValidIfName(s.Device):
		return fmt.Errorf("device %q is no interface name", s.Device)
	case len(s.Devices) > maxDevice:
		return fmt.Errorf("%d devices, want at most %d", len(s.Devices), maxDevice)
	case slices.ContainsFunc(s.Devices, func(d string) bool { return !ValidIfName(d) }):
		return fmt.Errorf("devices %q: one is no interface name", s.Devices)
	case s.Time.IsZero():
		return errors.New("time is missing")
	case s.Time.Year() < 1 || s.Time.Year() > 9999:
		return fmt.Errorf("time is in the year %d", s.Time.Year())
	case !s.Ready && s.Reason == "":
		return errors.New("not ready, and no reason is given")
	case len(s.Reason) > maxReason:
		return fmt.Errorf("reason has %d bytes, want at most %d", len(s.Reason), maxReason)
	case strings.ContainsFunc(s.Reason, unicode.IsControl):
		return errors.New("reason has control characters or line ends")
	}
	return nil
}

// ValidIfName reports whether the kernel takes s as the name of an interface (dev_valid_name).
func ValidIfName(s string) bool {
	if s == "" || len(s) > maxIfName || s == "." || s == ".." {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || r == ':' || r == unicode.ReplacementChar || unicode.IsSpace(r) || unicode.IsControl(r)
	})
}
