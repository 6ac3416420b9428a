// Package house holds the conventions of this repository as tests: what each package says of itself, which way imports point,
// where a process may end, how long things may grow, and whether the documents tell the truth.
//
// A rule is a function from a Tree, the files of the repository, to the places that break it. Each rule has a small bad tree in
// testdata, so that a rule which cannot fail is found out.
package house

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
)

// File is one file of the repository. Go files carry their syntax tree.
type File struct {
	Path string // slash-separated, relative to the top of the repository
	Data []byte
	AST  *ast.File // nil for all but Go files
}

// IsTest reports whether the file is compiled into tests only.
func (f File) IsTest() bool { return strings.HasSuffix(f.Path, "_test.go") }

// Dir is the folder of the file, "." for the top.
func (f File) Dir() string { return path.Dir(f.Path) }

// Tree is the repository as the rules see it: files sorted by path.
type Tree struct {
	Files []File
	fset  *token.FileSet
}

// Finding is one place that breaks a rule.
type Finding struct {
	Path string
	Line int // 0 when the whole file is meant
	Text string
}

// String is "path:line: text", which editors can jump to.
func (f Finding) String() string {
	if f.Line == 0 {
		return f.Path + ": " + f.Text
	}
	return fmt.Sprintf("%s:%d: %s", f.Path, f.Line, f.Text)
}

// Rule is one convention.
type Rule struct {
	Name  string // also the name of its bad example in testdata
	Why   string
	Check func(Tree) []Finding
}

// NewTree parses the Go files among the given ones. A file that does not parse is an error: every rule would be blind to it.
func NewTree(files map[string][]byte) (Tree, error) {
	t := Tree{fset: token.NewFileSet()}
	for p, data := range files {
		f := File{Path: p, Data: data}
		if strings.HasSuffix(p, ".go") {
			parsed, err := parser.ParseFile(t.fset, p, data, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return Tree{}, fmt.Errorf("parse %s: %w", p, err)
			}
			f.AST = parsed
		}
		t.Files = append(t.Files, f)
	}
	slices.SortFunc(t.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return t, nil
}

// at makes a finding for a place in a Go file.
func (t Tree) at(pos token.Pos, format string, args ...any) Finding {
	p := t.fset.Position(pos)
	return Finding{Path: p.Filename, Line: p.Line, Text: fmt.Sprintf(format, args...)}
}

// line tells the line of a place in a Go file.
func (t Tree) line(pos token.Pos) int { return t.fset.Position(pos).Line }

// code lists the Go files that end up in a binary or a library.
func (t Tree) code() []File {
	return slices.DeleteFunc(t.golang(), File.IsTest)
}

// golang lists all Go files.
func (t Tree) golang() []File {
	var out []File
	for _, f := range t.Files {
		if f.AST != nil {
			out = append(out, f)
		}
	}
	return out
}

// packages groups Go files by folder, in the order of the folders.
func packages(files []File) [][]File {
	var out [][]File
	for _, f := range files {
		i := slices.IndexFunc(out, func(p []File) bool { return p[0].Dir() == f.Dir() })
		if i < 0 {
			out = append(out, []File{f})
			continue
		}
		out[i] = append(out[i], f)
	}
	return out
}

// each runs a check on every function declaration of the files.
func each(files []File, check func(File, *ast.FuncDecl)) {
	for _, f := range files {
		for _, d := range f.AST.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				check(f, fn)
			}
		}
	}
}
