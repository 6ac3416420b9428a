package vm

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "embed"
)

// seeds names the modules that are wanted in the machine, by blanks and lines.
//
//go:embed modules.txt
var seeds string

// closure returns the files of the seeds and of all they depend on, as paths below the kernel's module folder. A seed that
// this kernel has built in, or does not have, is left out: the test that needs it says so.
func closure(modulesDep, seeds string) ([]string, error) {
	needs, file := map[string][]string{}, map[string]string{}
	for line := range strings.Lines(modulesDep) {
		path, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			return nil, fmt.Errorf("modules.dep: no colon in %q", line)
		}
		file[moduleName(path)] = path
		needs[path] = strings.Fields(rest)
	}
	wanted := map[string]bool{}
	var want func(path string)
	want = func(path string) {
		if wanted[path] {
			return
		}
		wanted[path] = true
		for _, p := range needs[path] {
			want(p)
		}
	}
	for _, seed := range strings.Fields(seeds) {
		if path, ok := file[moduleName(seed)]; ok {
			want(path)
		}
	}
	return slices.Sorted(maps.Keys(wanted)), nil
}

// moduleName is the name under which the kernel knows a module file.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// stage lays the wanted modules out as /lib/modules/<version> below root.
func stage(k debian, root string) error {
	data, err := os.ReadFile(filepath.Join(k.modules, "modules.dep"))
	if err != nil {
		return err
	}
	files, err := closure(string(data), seeds)
	if err != nil {
		return err
	}
	for _, name := range append(files, "modules.builtin", "modules.order") {
		to := filepath.Join(root, "lib", "modules", k.version, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.Link(filepath.Join(k.modules, name), to); err != nil {
			return err
		}
	}
	return nil
}
