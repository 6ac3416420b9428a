package collect

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet/ipam"
)

// node is a node's disk in a folder, and a kernel that says what the test wants.
type node struct {
	*testing.T
	Options
	pods   kernel.Pods
	pruned []netip.Prefix
	asked  []netip.Prefix
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{T: t, pods: kernel.Pods{DirSeen: true}}
	n.Options = Options{
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}, ClusterID: "c1", Kernel: n,
		Networks: dir + "/networks", Records: dir + "/flannel", Results: dir + "/results", State: dir + "/weft/collect.json", Proc: dir + "/proc",
	}
	n.boot("one", time.Now().Add(-30*24*time.Hour))
	return n
}

func (n *node) Pods(string) (kernel.Pods, error) { return n.pods, nil }

func (n *node) PruneBridge(_ string, keep []netip.Prefix, _ kernel.Pods) ([]netip.Prefix, error) {
	n.asked = keep
	return n.pruned, nil
}

func (n *node) write(path, content string, age time.Duration) {
	n.Helper()
	n.must(os.MkdirAll(filepath.Dir(path), 0o755))
	n.must(os.WriteFile(path, []byte(content), 0o600))
	at := time.Now().Add(-age)
	n.must(os.Chtimes(path, at, at))
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// boot makes /proc tell of a boot.
func (n *node) boot(id string, at time.Time) {
	n.Helper()
	n.write(n.Proc+"/sys/kernel/random/boot_id", id+"\n", 0)
	n.write(n.Proc+"/stat", fmt.Sprintf("cpu  1 2 3\nbtime %d\nprocesses 9\n", at.Unix()), 0)
}

// reserve makes a reservation of eth0, or with an ID of "" a broken one.
func (n *node) reserve(addr, id string, age time.Duration) {
	n.Helper()
	content := id + "\r\neth0"
	if id == "" {
		content = ""
	}
	n.write(n.Networks+"/cbr0/"+addr, content, age)
}

// result makes what libcni caches of an attachment.
func (n *node) result(id, addr, netns string, age time.Duration) {
	n.Helper()
	n.write(n.Results+"/cbr0-"+id+"-eth0", fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":"cbr0","netns":%q,"result":{"cniVersion":"1.0.0","ips":[{"address":"%s/24"}]}}`, id, netns, addr), age)
}

func (n *node) record(name string, age time.Duration) {
	n.Helper()
	n.write(n.Records+"/"+name, `{"name":"cbr0","type":"bridge","ipam":{"type":"host-local"}}`, age)
}

// live makes a namespace with an address; with a name of "" only a veth leads to it.
func (n *node) live(name, addr string) {
	s := kernel.Space{ID: len(n.pods.Spaces) + 1, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
	if name != "" {
		s.Files = []string{name}
		n.pods.Names = append(n.pods.Names, name)
	}
	n.pods.Spaces = append(n.pods.Spaces, s)
}

func (n *node) pass() Report {
	n.Helper()
	r, err := Run(context.Background(), n.Options)
	n.must(err)
	return r
}

// left gives "address owner" lines of the reservations.
func (n *node) left() []string {
	n.Helper()
	all, err := ipam.Store{Dir: n.Networks + "/cbr0"}.List()
	n.must(err)
	out := []string{}
	for _, r := range all {
		out = append(out, r.Addr.String()+" "+r.Owner.String())
	}
	return out
}

func files(dir string) []string {
	entries, _ := os.ReadDir(dir)
	out := []string{}
	for _, e := range entries {
		if e.Name()[0] != '.' {
			out = append(out, e.Name())
		}
	}
	slices.Sort(out)
	return out
}

func ownerA() ipam.Owner { return ipam.Owner{ContainerID: "a", IfName: "eth0"} }

// immutable makes a file one that nobody can remove, which not every file system and user can.
func (n *node) immutable(path string) {
	n.Helper()
	f, err := os.Open(path)
	n.must(err)
	n.Cleanup(func() {
		_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0)
		_ = f.Close()
	})
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, unix.STATX_ATTR_IMMUTABLE); err != nil {
		n.Skipf("make %s immutable: %v", path, err)
	}
}
