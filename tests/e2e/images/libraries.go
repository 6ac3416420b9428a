package images

import (
	"debug/elf"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

// libraryLine is a line of ldd that names a file: `libmnl.so.0 => /lib/x86_64-linux-gnu/libmnl.so.0 (0x...)` or the loader's.
var libraryLine = regexp.MustCompile(`(?m)^\s*(?:\S+ => )?(/\S+) \(0x`)

// librariesOf lists the shared libraries of an ELF file as the host's loader finds them; none for anything else.
func librariesOf(file string) ([]string, error) {
	binary, err := elf.Open(file)
	if err != nil {
		return nil, nil // a script, a certificate, a configuration file
	}
	needed, err := binary.ImportedLibraries()
	binary.Close()
	if err != nil || len(needed) == 0 {
		return nil, nil // static
	}
	out, err := exec.Command("ldd", file).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("list the libraries of %s: %w: %s", file, err, strings.TrimSpace(string(out)))
	}
	var libraries []string
	for _, match := range libraryLine.FindAllStringSubmatch(string(out), -1) {
		libraries = append(libraries, match[1])
	}
	return libraries, nil
}
