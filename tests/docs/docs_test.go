// Package docs keeps the documents true where a machine can: flags, keys, metrics and files that they name exist, and what exists
// is named.
package docs

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/cli"
)

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// all returns the sorted, distinct first groups of a pattern's matches.
func all(pattern, text string) []string {
	var out []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// section is the part of a document under a heading.
func section(t *testing.T, text, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("no section %q", heading)
	}
	body, _, _ := strings.Cut(rest, "\n## ")
	return body
}

// rows are the first cells of a section's table.
func rows(body string) string {
	return strings.Join(all(`(?m)^\| ([^|]+) \|`, body), "\n")
}

func TestEveryFlagIsInTheTableWithItsDefault(t *testing.T) {
	var help bytes.Buffer
	if _, err := cli.Parse(cli.Input{Verb: "run", Args: []string{"--help"}, Out: &help}); err != nil {
		t.Fatal(err)
	}
	table := section(t, read(t, "docs/configuration.md"), "Flags of flanneld")
	want, got := all(`(?m)^ +(?:-\w, )?(--[\w-]+)`, help.String()), all("`(--[\\w-]+)`", rows(table))
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("flags (-help +table):\n%s", d)
	}
	unwrapped := regexp.MustCompile(`\n {20,}`).ReplaceAllString(help.String(), " ")
	for _, m := range regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[\w-]+).*\(default "?([^")]+)"?\)`).FindAllStringSubmatch(unwrapped, -1) {
		row := regexp.MustCompile("(?m)^.*`" + m[1] + "`.*$").FindString(table)
		if !strings.Contains(row, "| `"+m[2]+"` |") && !strings.Contains(row, "no effect") {
			t.Errorf("%s: the default is %s, the table says %q", m[1], m[2], row)
		}
	}
}

func TestFlagsThatDocumentsUseExist(t *testing.T) {
	var help bytes.Buffer
	if _, err := cli.Parse(cli.Input{Verb: "doctor", Args: []string{"--help"}, Out: &help}); err != nil {
		t.Fatal(err)
	}
	known := append(all(`(--[\w-]+)`, help.String()), "--before-migration", "--from", "--to", "--port", "--keep-dataplane")
	foreign := []string{"--pod-network-cidr", "--allocate-node-cidrs", "--cluster-cidr", "--get-active-zones"} // of kubeadm and others
	for _, doc := range []string{"README.md", "docs/migration.md", "docs/networkpolicy.md", "docs/troubleshooting.md", "manifests/systemd/flanneld.service", "manifests/base/daemonset.yaml"} {
		for _, f := range all(`(?:^|[\s\x60|])(--[a-z][\w-]+)`, read(t, doc)) {
			if !slices.Contains(known, f) && !slices.Contains(foreign, f) {
				t.Errorf("%s names %s, which flanneld does not have", doc, f)
			}
		}
	}
}

func TestEveryKeyOfNetConfIsInTheTable(t *testing.T) {
	source := read(t, "subnet/netconf.go") + read(t, "subnet/confbackend.go")
	table := rows(section(t, read(t, "docs/configuration.md"), "net-conf.json"))
	for _, key := range all(`(?m)^\t\t\{"(\w+)", `, source) {
		// Windows' keys mean nothing here, and Backend itself is a group.
		if slices.Contains([]string{"MacPrefix", "Name", "Backend"}, key) || strings.HasPrefix(key, "IPv6Subnet") {
			continue
		}
		if !strings.Contains(table, "`"+key+"`") && !strings.Contains(table, "`Backend."+key+"`") {
			t.Errorf("net-conf.json: %s is not in the table", key)
		}
	}
}

func TestEveryAnnotationIsInTheTable(t *testing.T) {
	text := section(t, read(t, "docs/configuration.md"), "Annotations on the Node")
	for _, key := range all(`"((?:public-ip|backend|node-public|kube-subnet)[\w-]*)"`, read(t, "subnet/kube/prefix.go")) {
		if !strings.Contains(text, "`"+key+"`") {
			t.Errorf("annotation %s is not in the table", key)
		}
	}
}

func TestEveryMetricIsInTheTable(t *testing.T) {
	var code strings.Builder
	files, err := filepath.Glob(filepath.Join("..", "..", "backend", "daemon", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f, "_test.go") {
			code.WriteString(read(t, filepath.Join("backend", "daemon", filepath.Base(f))))
		}
	}
	want := all(`"(weft_\w+)"`, code.String())
	got := all("`(weft_\\w+)`", section(t, read(t, "docs/configuration.md"), "Metrics"))
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("metrics (-code +table):\n%s", d)
	}
}

func TestProblemsThatDocumentsNameExist(t *testing.T) {
	known := all(`= "(\w+)"`, read(t, "subnet/claim/reasons.go"))
	for _, name := range all("`([A-Z]\\w+Conflict)`", read(t, "docs/troubleshooting.md")) {
		if !slices.Contains(known, name) {
			t.Errorf("docs/troubleshooting.md names the problem %s, which the code does not have", name)
		}
	}
}
