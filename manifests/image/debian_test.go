package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestAnImageForAnotherArchitectureNamesWhatItTakes(t *testing.T) {
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	dir := t.TempDir()
	if err := canRun(runtime.GOARCH, dir); err != nil {
		t.Errorf("our own: %v", err)
	}
	for _, arch := range []string{other, "mips"} {
		if err := canRun(arch, dir); err == nil || !strings.Contains(err.Error(), "an image for "+arch) || !strings.Contains(err.Error(), "qemu-user-static") {
			t.Errorf("%s: %v", arch, err)
		}
	}
	emulator := map[string]string{"arm64": "qemu-aarch64", "amd64": "qemu-x86_64"}[other]
	if err := os.WriteFile(filepath.Join(dir, emulator), []byte("enabled\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := canRun(other, dir); err != nil {
		t.Errorf("with an emulator: %v", err)
	}
}
