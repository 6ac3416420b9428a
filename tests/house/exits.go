package house

import (
	"go/ast"
	"strings"
)

// oneExit forbids os.Exit outside main packages, and a second one inside: a process has one way out.
func oneExit(t Tree) []Finding {
	var out []Finding
	for _, pkg := range packages(t.code()) {
		seen := 0
		for _, f := range pkg {
			for _, call := range calls(f.AST) {
				if typeName(call.Fun) != "os.Exit" {
					continue
				}
				seen++
				switch {
				case f.AST.Name.Name != "main":
					out = append(out, t.at(call.Pos(), "os.Exit outside package main; return an error"))
				case seen > 1:
					out = append(out, t.at(call.Pos(), "a second os.Exit; one per program, in main"))
				}
			}
		}
	}
	return out
}

// noPanic forbids panics and the loggers that end the process. A panic for what cannot be is fine when a comment on its line
// or the line above says "impossible", "cannot happen" or "cannot fail".
func noPanic(t Tree) []Finding {
	var out []Finding
	for _, f := range t.code() {
		excused := map[int]bool{}
		for _, g := range f.AST.Comments {
			if text := g.Text(); strings.Contains(text, "impossible") || strings.Contains(text, "cannot happen") || strings.Contains(text, "cannot fail") {
				excused[t.line(g.End())] = true
				excused[t.line(g.End())+1] = true
			}
		}
		for _, call := range calls(f.AST) {
			name := typeName(call.Fun)
			switch {
			case name == "panic" && !excused[t.line(call.Pos())]:
				out = append(out, t.at(call.Pos(), `panic; return an error, or say in a comment why this is impossible`))
			case endsProcess(name):
				out = append(out, t.at(call.Pos(), "%s ends the process; return an error", name))
			}
		}
	}
	return out
}

func endsProcess(name string) bool {
	for _, p := range []string{"log.Fatal", "log.Panic", "klog.Fatal", "klog.Exit"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

func calls(n ast.Node) []*ast.CallExpr {
	var out []*ast.CallExpr
	ast.Inspect(n, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			out = append(out, c)
		}
		return true
	})
	return out
}
