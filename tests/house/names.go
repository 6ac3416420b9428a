package house

import (
	"go/ast"
	"go/format"
	"regexp"
	"strings"
)

var (
	familyName = regexp.MustCompile(`(?i)v[46]([A-Z_]|s?$)`)
	familyTwin = regexp.MustCompile(`V[46]`)
	wordStart  = regexp.MustCompile(`[A-Z]+[a-z]*|[0-9]+`)
	mark       = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)
)

// noTwins forbids functions named for one address family: families are data.
func noTwins(t Tree) []Finding {
	var out []Finding
	each(t.golang(), func(f File, fn *ast.FuncDecl) {
		pattern := familyName
		if f.IsTest() {
			pattern = familyTwin // a test's name is a sentence, and IPv6 is a word
		}
		if pattern.MatchString(fn.Name.Name) {
			out = append(out, t.at(fn.Pos(), "%s is named for one family; make the family a parameter", fn.Name.Name))
		}
	})
	return out
}

// testNames wants sentences: at least three words, or an id and a word or two.
func testNames(t Tree) []Finding {
	var out []Finding
	each(t.golang(), func(f File, fn *ast.FuncDecl) {
		name, isTest := strings.CutPrefix(fn.Name.Name, "Test")
		if !f.IsTest() || !isTest || fn.Recv != nil || name == "Main" {
			return
		}
		if len(wordStart.FindAllString(name, -1)) < 3 {
			out = append(out, t.at(fn.Pos(), "%s is no sentence; say what holds", fn.Name.Name))
		}
	})
	return out
}

// errorTexts forbids texts that say "failed to": an error names the action, and whoever wraps it adds his own. Three texts of
// flannel's plugin are quoted, since people search for them.
func errorTexts(t Tree) []Finding {
	var out []Finding
	for _, f := range t.code() {
		ast.Inspect(f.AST, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || !strings.Contains(lit.Value, "failed to ") || strings.HasPrefix(f.Path, "tests/house/") {
				return true
			}
			for _, quoted := range []string{"failed to load flannel", "failed to assemble Delegate", "failed to read IPAM", "failed to parse ipam", "failed to delegate"} {
				if strings.Contains(lit.Value, quoted) {
					return true
				}
			}
			out = append(out, t.at(lit.Pos(), `the text says "failed to"; name the action`))
			return true
		})
	}
	return out
}

// unfinished forbids marks of work to do.
func unfinished(t Tree) []Finding {
	var out []Finding
	for _, f := range t.golang() {
		for _, g := range f.AST.Comments {
			for _, c := range g.List {
				if mark.MatchString(c.Text) {
					out = append(out, t.at(c.Pos(), "an unfinished mark; finish it or file an issue"))
				}
			}
		}
	}
	return out
}

// formatted wants gofmt's layout.
func formatted(t Tree) []Finding {
	var out []Finding
	for _, f := range t.golang() {
		want, err := format.Source(f.Data)
		if err == nil && string(want) != string(f.Data) {
			out = append(out, t.at(f.AST.Package, "gofmt would change the file"))
		}
	}
	return out
}
