package ipam

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// DefaultResults is where libcni caches the result of each attachment.
const DefaultResults = "/var/lib/cni/results"

// kindV1 marks a cache file that also names the attachment; older ones hold the bare result.
const kindV1 = "cniCacheV1"

// Results is libcni's cache: one file for each attachment the runtime made and did not delete.
type Results struct {
	Dir string
}

// Result is one attachment as the runtime remembers it.
type Result struct {
	File    string // name in the folder
	Network string
	Owner   Owner
	Netns   string // path of the namespace as the runtime knows it
	Addrs   []netip.Addr
	ModTime time.Time
}

// List gives the attachments of all networks, and the names of files that cannot be read as such. No folder means
// neither.
func (r Results) List() (results []Result, unreadable []string, err error) {
	entries, err := listEntries(r.Dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(r.Dir, e.Name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		res, ok := parseResult(b)
		if err != nil || !ok {
			unreadable = append(unreadable, e.Name)
			continue
		}
		res.File, res.ModTime = e.Name, e.ModTime
		results = append(results, res)
	}
	return results, unreadable, nil
}

// Remove takes a cache file away.
func (r Results) Remove(file string) error {
	if err := os.Remove(filepath.Join(r.Dir, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove cached result: %w", err)
	}
	return nil
}

func parseResult(b []byte) (Result, bool) {
	var in struct {
		Kind        string          `json:"kind"`
		ContainerID string          `json:"containerId"`
		IfName      string          `json:"ifName"`
		NetworkName string          `json:"networkName"`
		Netns       string          `json:"netns"`
		Result      json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(b, &in); err != nil || in.Kind != kindV1 {
		return Result{}, false
	}
	o := Owner{in.ContainerID, in.IfName}
	if !o.Valid() || o.IfName == "" || in.NetworkName == "" {
		return Result{}, false
	}
	return Result{Network: in.NetworkName, Owner: o, Netns: in.Netns, Addrs: ResultAddrs(in.Result)}, true
}

// ResultAddrs gives the addresses in a CNI result of any version. What cannot be read is left out.
func ResultAddrs(raw []byte) []netip.Addr {
	type old struct {
		IP string `json:"ip"`
	}
	var in struct {
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
		IP4 old `json:"ip4"` // up to 0.2.0
		IP6 old `json:"ip6"`
	}
	if len(raw) == 0 || json.Unmarshal(raw, &in) != nil {
		return nil
	}
	texts := []string{in.IP4.IP, in.IP6.IP}
	for _, ip := range in.IPs {
		texts = append(texts, ip.Address)
	}
	var out []netip.Addr
	for _, t := range texts {
		if p, err := netip.ParsePrefix(t); err == nil {
			out = append(out, p.Addr())
		}
	}
	return out
}
