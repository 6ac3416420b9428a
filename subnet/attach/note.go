// Package attach is what the CNI plugin and the agent say to each other about a pod that is being attached: a note on
// disk that tells whose an address is before the API does, a question on a socket that is answered when the pod's
// policies are in the kernel, and a set in the kernel in which addresses are held until then.
package attach

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// Note says to which pod an interface belongs. Whoever attaches pods without Kubernetes gives no names, and then there is
// no note: no policy can select such a pod.
type Note struct {
	ContainerID string       `json:"containerID"`
	IfName      string       `json:"ifName"`
	Namespace   string       `json:"namespace"`
	Pod         string       `json:"pod"`
	UID         string       `json:"uid"` // may be empty: not every runtime tells
	Addrs       []netip.Addr `json:"addrs"`
	At          int64        `json:"at"`             // when it was written, in Unix nanoseconds: of two that name one address the later holds
	Held        bool         `json:"held,omitempty"` // the addresses are held before any interface has them
}

// What a note may be at most; a longer one is not ours.
const (
	mostBytes = 4 << 10
	mostAddrs = 16
	mostName  = 253 // of Kubernetes' names and UIDs
)

// NoteOf makes a note of what a runtime passes in CNI_ARGS ("K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop;..."). It is false
// when no pod is named.
func NoteOf(containerID, ifName, args string) (Note, bool) {
	n := Note{ContainerID: containerID, IfName: ifName}
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "K8S_POD_NAMESPACE":
			n.Namespace = value
		case "K8S_POD_NAME":
			n.Pod = value
		case "K8S_POD_UID":
			n.UID = value
		}
	}
	return n, n.Namespace != "" && n.Pod != ""
}

// ParseNote reads a note.
func ParseNote(data []byte) (Note, error) {
	var n Note
	if len(data) > mostBytes {
		return n, fmt.Errorf("read a note: %d bytes, want at most %d", len(data), mostBytes)
	}
	if err := json.Unmarshal(data, &n); err != nil {
		return Note{}, fmt.Errorf("read a note: %w", err)
	}
	for i, a := range n.Addrs {
		n.Addrs[i] = a.Unmap()
	}
	if err := n.validate(); err != nil {
		return Note{}, fmt.Errorf("read a note: %w", err)
	}
	return n, nil
}

func (n Note) render() ([]byte, error) {
	if err := n.validate(); err != nil {
		return nil, fmt.Errorf("write a note: %w", err)
	}
	return json.Marshal(n)
}

func (n Note) validate() error {
	for _, name := range []string{n.ContainerID, n.Namespace, n.Pod} {
		if !plain(name) {
			return fmt.Errorf("%q is no name", name)
		}
	}
	if n.UID != "" && !plain(n.UID) {
		return fmt.Errorf("%q is no UID", n.UID)
	}
	if !subnet.ValidIfName(n.IfName) {
		return fmt.Errorf("%q is no interface name", n.IfName)
	}
	if len(n.Addrs) == 0 || len(n.Addrs) > mostAddrs {
		return fmt.Errorf("%d addresses", len(n.Addrs))
	}
	for _, a := range n.Addrs {
		if !a.IsValid() || a.Zone() != "" {
			return errors.New("an address that is none")
		}
	}
	return nil
}

// plain tells whether a text can be a name of Kubernetes or a container's ID, and so a part of a file's name.
func plain(s string) bool {
	return s != "" && len(s) <= mostName && s[0] != '.' && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune("-_.", r)
	})
}

// Name is the note's file, one for each interface of a container.
func (n Note) Name() string { return n.ContainerID + "@" + n.IfName }

// Equal compares.
func (n Note) Equal(o Note) bool {
	return n.ContainerID == o.ContainerID && n.IfName == o.IfName && n.At == o.At && n.Namespace == o.Namespace && n.Pod == o.Pod && n.UID == o.UID && n.Held == o.Held && slices.Equal(n.Addrs, o.Addrs)
}

// The names beside subnet.env.
const (
	dirName    = "pods"
	socketName = "weft.sock"
)

// Paths gives the folder of notes and the agent's socket, both beside subnet.env.
func Paths(subnetFile string) (notes Notes, socket string) {
	dir := filepath.Dir(subnetFile)
	return Notes{filepath.Join(dir, dirName)}, filepath.Join(dir, socketName)
}
