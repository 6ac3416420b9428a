package node

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Spec says what a node is; it is handed to the node's process 1 as a file.
type Spec struct {
	Name     string   `json:"name"`
	Disk     string   `json:"disk"`     // host folder that holds what the node writes
	NetNS    string   `json:"netns"`    // path of the network namespace
	Cgroup   string   `json:"cgroup"`   // below each controller's mount point, e.g. weft-e2e/weft/node-1
	Programs string   `json:"programs"` // host folder with the programs, mounted read-only at ProgramsDir
	DNS      string   `json:"dns"`      // the name server in resolv.conf
	Services []string `json:"services"` // what process 1 keeps running; see services.go
}

// ProgramsDir is where a node finds the cluster's programs; it comes first in its PATH.
const ProgramsDir = "/opt/cluster/bin"

// Path is the node's PATH.
const Path = ProgramsDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// ReadSpec reads the file that the cluster wrote.
func ReadSpec(file string) (Spec, error) {
	var s Spec
	text, err := os.ReadFile(file)
	if err != nil {
		return s, fmt.Errorf("read the node's spec: %w", err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("parse the node's spec: %w", err)
	}
	return s, nil
}

// Upper is the host folder that holds the files by which the node differs from the host: its root's upper layer.
func (s Spec) Upper() string { return filepath.Join(s.Disk, "root") }

// Logs is the host folder that is the node's /var/log.
func (s Spec) Logs() string { return filepath.Join(s.Disk, "log") }

// volumes are the folders of the disk that are no overlay, because containers put overlays of their own on them.
func (s Spec) volumes() map[string]string {
	return map[string]string{
		"/var/lib/containerd": filepath.Join(s.Disk, "containerd"),
		"/var/lib/kubelet":    filepath.Join(s.Disk, "kubelet"),
		"/var/lib/etcd":       filepath.Join(s.Disk, "etcd"),
		"/var/log":            s.Logs(),
	}
}
