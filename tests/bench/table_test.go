package bench

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestATableSaysWhatIsBesideWhat(t *testing.T) {
	want := "| what | took | beside | which took | ratio | difference |\n|---|---|---|---|---|---|\n" +
		"| a | 12.5 ms | b | 10 ms | 1.25 | 2.5 ms |\n| c | 2.00 s | d | 500 µs | 4000.00 | 2.00 s |\n"
	got := Table([]Row{{"a", "b", 10 * time.Millisecond, 12500 * time.Microsecond}, {"c", "d", 500 * time.Microsecond, 2 * time.Second}})
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestTheTableTakesThePlaceOfTheOneBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	for _, page := range []string{"", begin("a"), end + begin("a"), begin("b") + end} {
		if err := os.WriteFile(path, []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Write(path, "a", "table\n"); err == nil {
			t.Errorf("%q: no error", page)
		}
	}
	if err := os.WriteFile(path, []byte("before\n"+begin("b")+"other\n"+end+begin("a")+"old\n"+end+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"one\n", "two\n"} {
		if err := Write(path, "a", table); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if want := "before\n" + begin("b") + "other\n" + end + begin("a") + table + end + "after\n"; err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
}
