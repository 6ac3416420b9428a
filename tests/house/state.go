package house

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// noInit forbids init: what a program does starts in main.
func noInit(t Tree) []Finding {
	var out []Finding
	each(t.golang(), func(_ File, fn *ast.FuncDecl) {
		if fn.Recv == nil && fn.Name.Name == "init" {
			out = append(out, t.at(fn.Pos(), "init runs behind the reader's back; call it from main or make it a value"))
		}
	})
	return out
}

// noState forbids variables at package level that can change. What stays: error sentinels, regular expressions, tables that
// nothing in the package writes to, and in package main the strings that the linker sets.
func noState(t Tree) []Finding {
	var out []Finding
	for _, pkg := range packages(t.code()) {
		written := writtenNames(pkg)
		for _, f := range pkg {
			for _, d := range f.AST.Decls {
				gen, ok := d.(*ast.GenDecl)
				if !ok || gen.Tok != token.VAR {
					continue
				}
				for _, s := range gen.Specs {
					spec, _ := s.(*ast.ValueSpec)
					out = append(out, t.stateIn(f, spec, written)...)
				}
			}
		}
	}
	return out
}

func (t Tree) stateIn(f File, spec *ast.ValueSpec, written map[string]bool) []Finding {
	var out []Finding
	for i, name := range spec.Names {
		var value ast.Expr
		if i < len(spec.Values) {
			value = spec.Values[i]
		}
		switch {
		case name.Name == "_":
		case written[name.Name]:
			out = append(out, t.at(name.Pos(), "%s is written to: state at package level", name.Name))
		case value == nil && f.AST.Name.Name == "main" && isIdent(spec.Type, "string"):
			// -ldflags -X main.version=...
		case value == nil && !strings.Contains(spec.Doc.Text()+docOf(f, spec), "go:embed"):
			out = append(out, t.at(name.Pos(), "%s has no value: something must set it later", name.Name))
		case value != nil && !constant(value):
			out = append(out, t.at(name.Pos(), "%s holds a value that can change", name.Name))
		}
	}
	return out
}

// docOf returns the raw comment lines directly above a spec; Text() drops directives such as go:embed.
func docOf(f File, spec *ast.ValueSpec) string {
	for _, g := range f.AST.Comments {
		if g.End() < spec.Pos() && spec.Pos()-g.End() < token.Pos(len("\nvar (\n\t")) {
			var b strings.Builder
			for _, c := range g.List {
				b.WriteString(c.Text)
			}
			return b.String()
		}
	}
	return ""
}

// constant reports whether an initialiser yields something that nobody changes unless the name itself is written to.
func constant(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.CompositeLit:
		return !strings.HasPrefix(typeName(e.Type), "sync.") && !strings.HasPrefix(typeName(e.Type), "atomic.")
	case *ast.UnaryExpr:
		return e.Op != token.AND && e.Op != token.ARROW
	case *ast.CallExpr:
		return constantCall(e)
	default:
		return true
	}
}

// constantCall knows the constructors whose result is a value: sentinels, Must functions, conversions.
func constantCall(e *ast.CallExpr) bool {
	name := typeName(e.Fun)
	short := name[strings.LastIndex(name, ".")+1:]
	if slices.Contains([]string{"make", "new"}, name) {
		return false
	}
	allowed := []string{"errors.New", "fmt.Errorf", "net.ParseIP", "netip.AddrFrom4", "time.Date", "time.Unix", "strings.NewReplacer", "uint16", "uint32", "int32", "int64"}
	_, conversion := e.Fun.(*ast.ArrayType)
	return conversion || slices.Contains(allowed, name) || strings.HasPrefix(short, "Must") || strings.HasPrefix(short, "must")
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return typeName(e.X) + "." + e.Sel.Name
	case *ast.IndexExpr:
		return typeName(e.X)
	default:
		return ""
	}
}

// writtenNames finds the identifiers that a package assigns to, increments, deletes from or takes the address of, leaving out
// names that are local where it happens.
func writtenNames(pkg []File) map[string]bool {
	out := map[string]bool{}
	each(pkg, func(_ File, fn *ast.FuncDecl) {
		if fn.Body == nil {
			return
		}
		local := localNames(fn)
		mark := func(e ast.Expr) {
			if name := root(e); name != "" && !local[name] {
				out[name] = true
			}
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					for _, l := range n.Lhs {
						mark(l)
					}
				}
			case *ast.IncDecStmt:
				mark(n.X)
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					mark(n.X)
				}
			case *ast.CallExpr:
				if (isIdent(n.Fun, "delete") || isIdent(n.Fun, "clear")) && len(n.Args) > 0 {
					mark(n.Args[0])
				}
			}
			return true
		})
	})
	return out
}

// root is the name at the left end of an expression such as table[key].field.
func root(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.IndexExpr:
		return root(e.X)
	case *ast.SelectorExpr:
		return root(e.X)
	case *ast.StarExpr:
		return root(e.X)
	case *ast.ParenExpr:
		return root(e.X)
	default:
		return ""
	}
}

// localNames collects the parameters, results and variables of a function, nested ones included.
func localNames(fn *ast.FuncDecl) map[string]bool {
	out := map[string]bool{}
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			for _, name := range n.Names {
				out[name.Name] = true
			}
		case *ast.ValueSpec:
			for _, name := range n.Names {
				out[name.Name] = true
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, l := range n.Lhs {
					out[root(l)] = true
				}
			}
		case *ast.RangeStmt:
			for _, l := range []ast.Expr{n.Key, n.Value} {
				if l != nil && n.Tok == token.DEFINE {
					out[root(l)] = true
				}
			}
		}
		return true
	})
	return out
}
