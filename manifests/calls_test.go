package manifests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// verbs are the client methods that become requests; the method's name in lower case is the RBAC verb.
var verbs = []string{"Get", "List", "Watch", "Create", "Update", "Patch", "Delete"}

// requests finds what the sources of a package ask of the API server, as "resource verb" or "resource/subresource verb". It
// follows client.CoreV1().Nodes().Get(...), and a variable that holds client.CoreV1().Nodes().
func requests(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no sources in %s", dir)
	}
	var out []string
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			out = append(out, requestsIn(d)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func requestsIn(d ast.Decl) []string {
	held := map[string]string{} // variable -> resource
	ast.Inspect(d, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == 1 && len(a.Rhs) == 1 {
			if id, ok := a.Lhs[0].(*ast.Ident); ok && resourceOf(a.Rhs[0]) != "" {
				held[id.Name] = resourceOf(a.Rhs[0])
			}
		}
		return true
	})
	var out []string
	patched := map[*ast.SelectorExpr]string{} // the subresource of a patch, by the method that is called
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Patch" || len(n.Args) == 0 {
				return true
			}
			if last, ok := n.Args[len(n.Args)-1].(*ast.BasicLit); ok {
				sub, _ := strconv.Unquote(last.Value)
				patched[sel] = "/" + sub
			}
		case *ast.SelectorExpr: // a call, or the method as a value
			if !slices.Contains(verbs, n.Sel.Name) {
				return true
			}
			resource := resourceOf(n.X)
			if id, ok := n.X.(*ast.Ident); ok {
				resource = held[id.Name]
			}
			if resource != "" {
				out = append(out, resource+patched[n]+" "+strings.ToLower(n.Sel.Name))
			}
		}
		return true
	})
	return out
}

// resourceOf reads "nodes" out of x.CoreV1().Nodes(), and "networking.k8s.io/networkpolicies" out of
// x.NetworkingV1().NetworkPolicies(namespace).
func resourceOf(e ast.Expr) string {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return ""
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	group, ok := sel.X.(*ast.CallExpr)
	if !ok {
		return ""
	}
	if g, ok := group.Fun.(*ast.SelectorExpr); ok && strings.HasSuffix(g.Sel.Name, "V1") {
		of := strings.ToLower(strings.TrimSuffix(g.Sel.Name, "V1"))
		if of == "core" {
			return strings.ToLower(sel.Sel.Name)
		}
		return of + ".k8s.io/" + strings.ToLower(sel.Sel.Name)
	}
	return ""
}
