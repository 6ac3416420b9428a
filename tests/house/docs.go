package house

import (
	"go/ast"
	"go/token"
	"strings"
)

// packageComments wants one comment per package whose first sentence says what the folder is for.
func packageComments(t Tree) []Finding {
	var out []Finding
	for _, pkg := range packages(t.golang()) {
		name, doc := strings.TrimSuffix(pkg[0].AST.Name.Name, "_test"), "" // the first file may be a test from outside
		for _, f := range pkg {
			if text := f.AST.Doc.Text(); text != "" && !strings.HasPrefix(text, "//go:") {
				doc = text
			}
		}
		switch {
		case strings.TrimSpace(doc) == "":
			out = append(out, Finding{Path: pkg[0].Dir(), Text: "the package has no comment that says what the folder is for"})
		case name != "main" && !strings.HasPrefix(doc, "Package "+name+" "):
			out = append(out, Finding{Path: pkg[0].Dir(), Text: `the package comment should start with "Package ` + name + ` "`})
		}
	}
	return out
}

// exportedDocs wants a comment on each exported name at package level. A comment on a group counts for its members.
func exportedDocs(t Tree) []Finding {
	var out []Finding
	for _, f := range t.code() {
		if f.AST.Name.Name == "main" {
			continue // nobody can import it
		}
		for _, d := range f.AST.Decls {
			out = append(out, t.undocumented(d)...)
		}
	}
	return out
}

func (t Tree) undocumented(d ast.Decl) []Finding {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && receiverExported(d) && d.Doc.Text() == "" {
			return []Finding{t.at(d.Pos(), "%s is exported and has no comment", d.Name.Name)}
		}
	case *ast.GenDecl:
		if d.Tok == token.IMPORT || d.Doc.Text() != "" {
			return nil
		}
		var out []Finding
		for _, s := range d.Specs {
			out = append(out, t.undocumentedSpec(s)...)
		}
		return out
	}
	return nil
}

func (t Tree) undocumentedSpec(s ast.Spec) []Finding {
	switch s := s.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() && s.Doc.Text() == "" {
			return []Finding{t.at(s.Pos(), "%s is exported and has no comment", s.Name.Name)}
		}
	case *ast.ValueSpec:
		for _, n := range s.Names {
			if n.IsExported() && s.Doc.Text() == "" && s.Comment.Text() == "" {
				return []Finding{t.at(n.Pos(), "%s is exported and has no comment", n.Name)}
			}
		}
	}
	return nil
}

// receiverExported reports whether a function is reachable from outside: no receiver, or one of an exported type.
func receiverExported(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

// mutexComments wants a word on what each mutex protects: state has one owner, and a lock is the exception that needs a reason.
func mutexComments(t Tree) []Finding {
	var out []Finding
	for _, f := range t.code() {
		ast.Inspect(f.AST, func(n ast.Node) bool {
			field, ok := n.(*ast.Field)
			if !ok || field.Doc.Text() != "" || field.Comment.Text() != "" {
				return true
			}
			if sel, ok := field.Type.(*ast.SelectorExpr); ok && isIdent(sel.X, "sync") && strings.HasSuffix(sel.Sel.Name, "Mutex") {
				out = append(out, t.at(field.Pos(), "a mutex without a comment that says what it protects"))
			}
			return true
		})
	}
	return out
}

func isIdent(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}
