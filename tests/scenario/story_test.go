package scenario

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/tools/txtar"

	"github.com/weft-cni/weft/tests/lane"
)

// stories reads the scripts.
func stories(t *testing.T) map[string]*txtar.Archive {
	t.Helper()
	paths, err := filepath.Glob("stories/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	all := map[string]*txtar.Archive{}
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(path), ".txtar")] = a
	}
	return all
}

// playsOn reports whether a story is for a flavour: it is, unless it says "# plays on: " and names others.
func playsOn(a *txtar.Archive, flavour string) bool {
	_, rest, limited := strings.Cut(string(a.Comment), "# plays on: ")
	list, _, _ := strings.Cut(rest, "\n")
	return !limited || strings.Contains(list, flavour)
}

// playsIn reports whether a story is for a lane: it is, unless it says "# lanes: " and names others.
func playsIn(a *txtar.Archive, l lane.Lane) bool {
	_, rest, limited := strings.Cut(string(a.Comment), "# lanes: ")
	list, _, _ := strings.Cut(rest, "\n")
	return !limited || strings.Contains(list, string(l))
}

func tell(t *testing.T, a *txtar.Archive, f flavour) {
	t.Helper()
	w, err := newWorld(f)
	if err != nil {
		t.Fatal(err)
	}
	defer w.end()
	if err := w.play(a); err != nil {
		t.Error(err)
	}
}

func TestStoriesOnFakeKernels(t *testing.T) {
	for _, l := range lane.Lanes() {
		for name, a := range stories(t) {
			if !playsOn(a, "fakes") || !playsIn(a, l) {
				continue
			}
			t.Run(string(l)+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { tell(t, a, fakes(l)) })
			})
		}
	}
}

func TestTheREADMEHasEveryWord(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if len(verbs()) > 15 {
		t.Errorf("%d words: more than 15 are a programming language", len(verbs()))
	}
	for word := range verbs() {
		if !strings.Contains(string(text), "\n| `"+word+" ") && !strings.Contains(string(text), "\n| `"+word+"`") {
			t.Errorf("README.md does not tell of %q", word)
		}
	}
}
