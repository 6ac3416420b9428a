package house

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

var (
	directRequire = regexp.MustCompile(`^\s*(?:require\s+)?[^\s/]+\.[^\s]+\s+v[0-9]\S*(.*)$`)
	markdownLink  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	makeCommand   = regexp.MustCompile("(?m)(?:^|`|\\$ |# )make ([a-z][a-z0-9-]*)")
	makeTarget    = regexp.MustCompile(`^([a-zA-Z][a-zA-Z0-9 _./-]*):(?:[^=]|$)`)
	fencedCode    = regexp.MustCompile("(?s)```.*?```")
)

// dependencyReasons wants a comment in go.mod that says why each direct dependency is there.
func dependencyReasons(t Tree) []Finding {
	var out []Finding
	for _, f := range t.Files {
		if f.Path != "go.mod" {
			continue
		}
		above := ""
		for i, line := range strings.Split(string(f.Data), "\n") {
			m := directRequire.FindStringSubmatch(line)
			comment := strings.TrimSpace(above)
			above = line
			if m == nil || strings.Contains(m[1], "// indirect") {
				continue
			}
			if !strings.Contains(m[1], "//") && !strings.HasPrefix(comment, "//") {
				out = append(out, Finding{f.Path, i + 1, "a direct dependency without a reason"})
			}
		}
	}
	return out
}

// localTraces forbids what belongs to one machine: folders given by the caller, and host names of its package mirrors.
func localTraces(words []string) func(Tree) []Finding {
	return func(t Tree) []Finding {
		var out []Finding
		for _, f := range t.Files {
			if !utf8.Valid(f.Data) || strings.HasSuffix(f.Path, "go.sum") {
				continue
			}
			for i, line := range bytes.Split(f.Data, []byte("\n")) {
				for _, w := range words {
					if bytes.Contains(line, []byte(w)) {
						out = append(out, Finding{f.Path, i + 1, "names something of one machine: " + w})
					}
				}
			}
		}
		return out
	}
}

// makeCommands wants every `make X` that a document tells people to type to be a target, and every target to say what it does:
// a bare make lists them.
func makeCommands(t Tree) []Finding {
	var out []Finding
	targets := map[string]bool{}
	for _, f := range t.Files {
		if f.Path != "Makefile" {
			continue
		}
		for i, line := range strings.Split(string(f.Data), "\n") {
			m := makeTarget.FindStringSubmatch(line)
			if m == nil || strings.HasPrefix(line, ".") {
				continue
			}
			for name := range strings.FieldsSeq(m[1]) {
				targets[name] = true
			}
			if !strings.Contains(line, " ## ") {
				out = append(out, Finding{f.Path, i + 1, "a target without a description"})
			}
		}
	}
	return append(out, t.inMarkdown(makeCommand, func(_ File, name string) string {
		if targets[name] {
			return ""
		}
		return fmt.Sprintf("make %s is no target of the Makefile", name)
	})...)
}

// links wants relative links of documents to lead to a file or folder of the tree.
func links(t Tree) []Finding {
	return t.inMarkdown(markdownLink, func(f File, target string) string {
		target, _, _ = strings.Cut(target, "#")
		if target == "" || strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
			return ""
		}
		want := path.Join(f.Dir(), target)
		if slices.ContainsFunc(t.Files, func(g File) bool { return within(g.Path, want) }) {
			return ""
		}
		return "the link " + target + " leads nowhere"
	})
}

// inMarkdown runs a check on each match of a pattern in the documents. Links inside code blocks are code.
func (t Tree) inMarkdown(pattern *regexp.Regexp, check func(File, string) string) []Finding {
	var out []Finding
	for _, f := range t.Files {
		if path.Ext(f.Path) != ".md" {
			continue
		}
		data := f.Data
		if pattern == markdownLink {
			data = fencedCode.ReplaceAllFunc(data, func(b []byte) []byte { return bytes.Repeat([]byte("\n"), bytes.Count(b, []byte("\n"))) })
		}
		for _, m := range pattern.FindAllSubmatchIndex(data, -1) {
			if text := check(f, string(data[m[2]:m[3]])); text != "" {
				out = append(out, Finding{f.Path, 1 + bytes.Count(data[:m[2]], []byte("\n")), text})
			}
		}
	}
	return out
}
