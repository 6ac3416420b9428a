package subnet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
)

// ErrOtherCluster tells that a kept snapshot belongs to another cluster or node and must not be used.
var ErrOtherCluster = errors.New("the kept snapshot is not of this node in this cluster")

// cacheVersion changes when an older daemon could misread the file; then the file counts as absent.
const cacheVersion = 1

// cacheFile is snapshot.json: the last good snapshot, from which a node comes up while the API server is away.
type cacheFile struct {
	Version  int
	Snapshot Snapshot
}

// RenderCache is snapshot.json for a snapshot. Problems are left out: they are history when the file is read.
func RenderCache(s Snapshot) ([]byte, error) {
	s.Problems = nil
	data, err := json.MarshalIndent(cacheFile{Version: cacheVersion, Snapshot: s}, "", " ")
	if err != nil {
		return nil, fmt.Errorf("render the kept snapshot: %w", err)
	}
	return append(data, '\n'), nil
}

// ParseCache reads snapshot.json strictly: the file outlives power cuts and other versions, and what comes out of it
// is programmed into the kernel without the API server's word. Any doubt is an error, and then there is no cache.
func ParseCache(data []byte) (Snapshot, error) {
	var file cacheFile
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&file); err != nil {
		return Snapshot{}, fmt.Errorf("parse the kept snapshot: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Snapshot{}, errors.New("parse the kept snapshot: there is something after its end")
	}
	if file.Version != cacheVersion {
		return Snapshot{}, fmt.Errorf("parse the kept snapshot: version %d, want %d", file.Version, cacheVersion)
	}
	s := file.Snapshot
	if err := s.check(); err != nil {
		return Snapshot{}, fmt.Errorf("parse the kept snapshot: %w", err)
	}
	return s, nil
}

// CheckCache refuses a kept snapshot of another node or cluster. An empty cluster ID on either side means not known
// and does not count.
func CheckCache(kept Snapshot, node, clusterID string) error {
	if kept.Self.Name != node {
		return fmt.Errorf("%w: it is node %q's, this is %q", ErrOtherCluster, kept.Self.Name, node)
	}
	if kept.ClusterID != "" && clusterID != "" && kept.ClusterID != clusterID {
		return fmt.Errorf("%w: it is of cluster %s, this is %s", ErrOtherCluster, kept.ClusterID, clusterID)
	}
	return nil
}

// check applies to a snapshot from a file the rules that one from the API server meets by construction.
func (s Snapshot) check() error {
	if strings.Trim(s.ResourceVersion, "0123456789") != "" {
		return fmt.Errorf("resource version %.40q is no number", s.ResourceVersion)
	}
	if s.Self.Name == "" || !s.Self.Exists {
		return errors.New("it has no own node")
	}
	for _, f := range Families() {
		if p := s.Self.PodCIDRs[f]; p.IsValid() && (p != p.Masked() || FamilyOf(p.Addr()) != f) {
			return fmt.Errorf("own pod CIDR %s is not a masked %v range", p, f)
		}
	}
	if !slices.IsSortedFunc(s.Peers, func(a, b Peer) int { return strings.Compare(a.Name, b.Name) }) {
		return errors.New("its peers are not sorted")
	}
	if !slices.IsSortedFunc(s.NodeAddrs, netip.Addr.Compare) {
		return errors.New("its node addresses are not sorted")
	}
	for i, p := range s.Peers {
		if p.Name == s.Self.Name || i > 0 && s.Peers[i-1].Name == p.Name {
			return fmt.Errorf("node %q is there twice", p.Name)
		}
		if err := p.check(); err != nil {
			return fmt.Errorf("peer %q: %w", p.Name, err)
		}
	}
	return nil
}

func (p Peer) check() error {
	if p.Name == "" || p.VNI >= 1<<24 || p.Endpoints == [2]Endpoint{} {
		return errors.New("a name, a VNI below 2^24 and an endpoint are needed")
	}
	for _, f := range Families() {
		if e := p.Endpoints[f]; !e.IsZero() {
			if err := e.Check(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// Check tells what is wrong with an endpoint of a family, or nil. A MAC may be absent.
func (e Endpoint) Check(f Family) error {
	if p := e.PodCIDR; !p.IsValid() || p != p.Masked() || FamilyOf(p.Addr()) != f || p.Addr().Is4In6() || p.Bits() > p.Addr().BitLen()-2 {
		return fmt.Errorf("%q is not a masked %v range with room for pods", p, f)
	}
	if err := CheckPublicIP(f, e.PublicIP); err != nil {
		return err
	}
	if e.MAC[0]&1 != 0 {
		return fmt.Errorf("%q is not a unicast MAC", e.MAC)
	}
	return nil
}

// CheckPublicIP tells why an address cannot be the outer destination of a family, or nil.
func CheckPublicIP(f Family, a netip.Addr) error {
	if !a.IsValid() || FamilyOf(a) != f || a.Is4In6() || a.Zone() != "" {
		return fmt.Errorf("%q is not an %v address", a, f)
	}
	broadcast := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	if a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a == broadcast || f == IPv6 && a.IsLinkLocalUnicast() {
		return fmt.Errorf("%q is not an address that other nodes can send to", a)
	}
	return nil
}
