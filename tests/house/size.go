package house

import (
	"bytes"
	"go/ast"
	"slices"
)

const (
	maxFuncLines   = 80
	maxFileLines   = 300
	maxParams      = 4
	maxBools       = 1
	maxIfceMethods = 4
)

// funcLength holds functions to 80 lines; 60 is the habit. Tests are left out, for tables.
func funcLength(t Tree) []Finding {
	var out []Finding
	each(t.code(), func(_ File, fn *ast.FuncDecl) {
		if n := t.line(fn.End()) - t.line(fn.Pos()) + 1; n > maxFuncLines {
			out = append(out, t.at(fn.Pos(), "%s has %d lines; at most %d", fn.Name.Name, n, maxFuncLines))
		}
	})
	return out
}

// fileLength holds files to 300 lines; about 110 is the habit.
func fileLength(t Tree) []Finding {
	var out []Finding
	for _, f := range t.code() {
		if n := bytes.Count(f.Data, []byte("\n")); n > maxFileLines {
			out = append(out, t.at(f.AST.Pos(), "the file has %d lines; at most %d, one noun each", n, maxFileLines))
		}
	}
	return out
}

// signatures wants a struct instead of a long row of parameters or of two bools that a caller can swap. A context or a test at
// the front is no parameter in this sense.
func signatures(t Tree) []Finding {
	var out []Finding
	each(t.code(), func(_ File, fn *ast.FuncDecl) {
		params, bools := 0, 0
		for _, p := range fn.Type.Params.List {
			n := max(1, len(p.Names))
			if slices.Contains([]string{"context.Context", "testing.TB"}, typeName(p.Type)) || typeName(starred(p.Type)) == "testing.T" {
				continue
			}
			params += n
			if isIdent(p.Type, "bool") {
				bools += n
			}
		}
		if params > maxParams || bools > maxBools {
			out = append(out, t.at(fn.Pos(), "%s takes %d parameters, %d of them bools; make a struct", fn.Name.Name, params, bools))
		}
	})
	return out
}

func starred(e ast.Expr) ast.Expr {
	if s, ok := e.(*ast.StarExpr); ok {
		return s.X
	}
	return e
}

// interfaces holds an interface to four methods.
func interfaces(t Tree) []Finding {
	var out []Finding
	for _, f := range t.code() {
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if i, ok := n.(*ast.InterfaceType); ok && i.Methods.NumFields() > maxIfceMethods {
				out = append(out, t.at(i.Pos(), "an interface of %d methods; at most %d", i.Methods.NumFields(), maxIfceMethods))
			}
			return true
		})
	}
	return out
}
