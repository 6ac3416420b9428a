package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// found is a test function and the package it lies in, as a relative path.
type found struct{ pkg, name string }

type founds []found

// inNamespaces picks the files whose tests need root and network namespaces.
func inNamespaces(file string) bool { return strings.HasSuffix(file, "_netns_test.go") }

// inMachine picks the files whose tests start a virtual machine.
func inMachine(file string) bool { return strings.HasSuffix(file, "_vm_test.go") }

// find lists the functions with a prefix in the test files of this module that are picked.
func find(prefix string, pick func(string) bool) (founds, error) {
	const root = "."
	var out founds
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (nested(path) || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go") || !pick(path):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, prefix) && fn.Name.Name != "TestMain" {
				out = append(out, found{pkg: "./" + filepath.Dir(path), name: fn.Name.Name})
			}
		}
		return nil
	})
	return out, err
}

// nested reports whether a folder holds another module.
func nested(dir string) bool {
	m, _ := filepath.Glob(filepath.Join(dir, "go.mod"))
	return len(m) > 0
}

// pattern matches the names and nothing else; with no names it matches nothing.
func (f founds) pattern() string {
	names := []string{"no test has this name"}
	for _, n := range f {
		names = append(names, regexp.QuoteMeta(n.name))
	}
	slices.Sort(names)
	return "^(" + strings.Join(slices.Compact(names), "|") + ")$"
}

// packages lists where the functions lie, each folder once.
func (f founds) packages() []string {
	var out []string
	for _, n := range f {
		out = append(out, n.pkg)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
