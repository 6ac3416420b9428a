package artifacts

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheCacheBuildsOnceForEachKeyAndForgetsOldVersions(t *testing.T) {
	cache := Cache{Dir: t.TempDir()}
	built := 0
	build := func(tmp string) error {
		built++
		return os.WriteFile(tmp, []byte("x"), 0o644)
	}
	for _, key := range []string{Key("1"), Key("1"), Key("2")} {
		if _, err := cache.Make("bin", "thing", key, build); err != nil {
			t.Fatal(err)
		}
	}
	left, _ := filepath.Glob(filepath.Join(cache.Dir, "bin", "*"))
	if want := []string{filepath.Join(cache.Dir, "bin", "thing-"+Key("2"))}; built != 2 || !cmp.Equal(want, left) {
		t.Errorf("built %d times, left %v", built, left)
	}
}

func TestAnInterruptedBuildLooksUnfinished(t *testing.T) {
	cache := Cache{Dir: t.TempDir()}
	broken := errors.New("power cut")
	_, err := cache.Make("bin", "thing", Key("1"), func(tmp string) error {
		return errors.Join(os.WriteFile(tmp, []byte("half"), 0o644), broken)
	})
	if !errors.Is(err, broken) {
		t.Fatalf("error is %v", err)
	}
	path, err := cache.Make("bin", "thing", Key("1"), func(tmp string) error {
		if _, err := os.Stat(tmp); err == nil {
			t.Error("the half is still there")
		}
		return os.WriteFile(tmp, []byte("whole"), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(path); string(text) != "whole" {
		t.Errorf("the cache holds %q", text)
	}
}

func TestKeysTellInputsApartHoweverTheyAreSplit(t *testing.T) {
	if Key("ab", "c") == Key("a", "bc") || Key("a") == Key("a", "") {
		t.Error("different inputs share a key")
	}
}
