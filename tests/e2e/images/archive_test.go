package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnArchiveHoldsTheTreeTheConfigAndTheNames(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!"), 0o755); err != nil {
		t.Fatal(err)
	}
	image := &Image{Name: "localhost/a:1", Aliases: []string{"localhost/b:2"}, Entrypoint: []string{"/bin/program"}}
	image.Tree.Add(program, "/bin/program")
	image.Tree.Link("/bin/alias", "program")
	image.Tree.Text("/etc/file", "text", 0o600)
	image.Tree.Folder("/tmp", 0o1777)
	archive := filepath.Join(dir, "image.tar")
	if err := image.WriteArchive(archive); err != nil {
		t.Fatal(err)
	}
	files := untar(t, mustRead(t, archive))
	var manifest []struct {
		Config   string
		RepoTags []string
	}
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil {
		t.Fatal(err)
	}
	if want := []string{"localhost/a:1", "localhost/b:2"}; !cmp.Equal(want, manifest[0].RepoTags) {
		t.Errorf("the names are %v", manifest[0].RepoTags)
	}
	if files[manifest[0].Config] == "" {
		t.Errorf("no config %s", manifest[0].Config)
	}
	want := map[string]string{"bin/": "", "bin/program": "#!", "bin/alias": "-> program", "etc/": "", "etc/file": "text", "tmp/": ""}
	if diff := cmp.Diff(want, untar(t, []byte(files["layer.tar"]))); diff != "" {
		t.Errorf("the layer (-want +got):\n%s", diff)
	}
}

func TestAProgramBringsItsLibraries(t *testing.T) {
	var tree Tree
	if err := tree.AddProgram("/usr/bin/nsenter"); err != nil {
		t.Fatal(err)
	}
	var libc bool
	for _, name := range tree.names() {
		libc = libc || filepath.Base(name) == "libc.so.6"
	}
	if !libc {
		t.Errorf("no libc in %v", tree.names())
	}
}

func mustRead(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func untar(t *testing.T, text []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	in := tar.NewReader(bytes.NewReader(text))
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(content)
		if header.Linkname != "" {
			files[header.Name] = "-> " + header.Linkname
		}
	}
}
