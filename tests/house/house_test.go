package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

const top = "../.."

// TestTheRepositoryKeepsTheHouseRules runs every rule on every file that git knows or would add.
func TestTheRepositoryKeepsTheHouseRules(t *testing.T) {
	tree := repository(t)
	for _, r := range Rules(machineWords(t)) {
		t.Run(r.Name, func(t *testing.T) {
			for _, f := range r.Check(tree) {
				t.Errorf("%s\n\t(%s)", f, r.Why)
			}
		})
	}
}

// TestEachRuleCanFail runs every rule on its bad example, whose file "findings" lists what the rule must say, no more and no less.
func TestEachRuleCanFail(t *testing.T) {
	for _, r := range Rules([]string{"/home/somebody/", "mirror.example.internal"}) {
		t.Run(r.Name, func(t *testing.T) {
			archive, err := txtar.ParseFile(filepath.Join("testdata", r.Name+".txtar"))
			if err != nil {
				t.Fatalf("a rule needs a bad example: %v", err)
			}
			files, want := map[string][]byte{}, ""
			for _, f := range archive.Files {
				if f.Name == "findings" {
					want = string(f.Data)
					continue
				}
				files[f.Name] = f.Data
			}
			tree, err := NewTree(files)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, f := range r.Check(tree) {
				got.WriteString(f.String() + "\n")
			}
			if want == "" {
				t.Errorf("the example lists no findings; the rule says:\n%s", got.String())
			}
			if d := cmp.Diff(want, got.String()); d != "" {
				t.Errorf("findings (-want +got):\n%s", d)
			}
		})
	}
}

// TestPurePackagesReachNeitherClientGoNorNetlink asks the go command, since a direct import may hide an indirect one.
func TestPurePackagesReachNeitherClientGoNorNetlink(t *testing.T) {
	for _, pkg := range pure {
		if _, err := os.Stat(filepath.Join(top, pkg)); err != nil {
			continue // not written yet
		}
		cmd := exec.Command("go", "list", "-deps", "./"+pkg)
		cmd.Dir = top
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list -deps ./%s: %v", pkg, err)
		}
		for _, d := range reaches(strings.Fields(string(out))) {
			t.Errorf("%s reaches %s", pkg, d)
		}
	}
	bad := []string{"fmt", netlink + "/nl", clientGo + "/rest", "k8s.io/api/core/v1", netlink + "er"}
	if d := cmp.Diff(bad[1:4], reaches(bad)); d != "" {
		t.Errorf("reaches (-want +got):\n%s", d)
	}
}

// TestTheRuleNamesAreUnique keeps two rules from sharing one bad example.
func TestTheRuleNamesAreUnique(t *testing.T) {
	var names []string
	for _, r := range Rules(nil) {
		names = append(names, r.Name)
	}
	slices.Sort(names)
	if d := cmp.Diff(names, slices.Compact(slices.Clone(names))); d != "" {
		t.Error(d)
	}
}

// repository reads the files that git tracks or would add. testdata is left out where it is bad on purpose.
func repository(t *testing.T) Tree {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = top
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	files := map[string][]byte{}
	for name := range strings.SplitSeq(string(out), "\x00") {
		if name == "" || strings.HasPrefix(name, "tests/house/testdata/") || strings.HasSuffix(name, ".go") && strings.Contains(name, "/testdata/") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			continue // deleted, or a link to a folder
		}
		files[name] = data
	}
	tree, err := NewTree(files)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// machineWords are the traces that this machine could leave: the folder above the repository, the home folder, and the
// mirrors that its Go command was told to use instead of the public ones.
func machineWords(t *testing.T) []string {
	t.Helper()
	var out []string
	everywhere := []string{"/", "/tmp", "/home", "/opt", "/srv", "/mnt", "/usr/src", "/var/tmp"} // no traces, though a clone may lie there
	if abs, err := filepath.Abs(top); err == nil && !slices.Contains(everywhere, filepath.Dir(abs)) {
		out = append(out, filepath.Dir(abs)+"/")
	}
	if home, err := os.UserHomeDir(); err == nil && home != "/" {
		out = append(out, home+"/")
	}
	proxies, err := exec.Command("go", "env", "GOPROXY").Output()
	if err != nil {
		t.Fatalf("go env GOPROXY: %v", err)
	}
	for _, m := range regexp.MustCompile(`https?://([^/,|\s]+)`).FindAllStringSubmatch(string(proxies), -1) {
		out = append(out, m[1])
	}
	return out
}
