package images

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnAmendedImageHasOneLayerMoreAndKeepsTheRest(t *testing.T) {
	dir := t.TempDir()
	first := &Image{Name: "localhost/a:1", Entrypoint: []string{"/program"}}
	first.Tree.Text("/program", "old", 0o755)
	archive, amended := filepath.Join(dir, "a.tar"), filepath.Join(dir, "b.tar")
	if err := first.WriteArchive(archive); err != nil {
		t.Fatal(err)
	}
	second := &Amend{From: archive, Name: "localhost/a:2"}
	second.Tree.Text("/program", "new", 0o755)
	if err := second.WriteArchive(amended); err != nil {
		t.Fatal(err)
	}
	files := untar(t, mustRead(t, amended))
	var manifest []loadable
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil {
		t.Fatal(err)
	}
	var layers []map[string]string
	for _, layer := range manifest[0].Layers {
		layers = append(layers, untar(t, []byte(files[layer])))
	}
	if diff := cmp.Diff([]map[string]string{{"program": "old"}, {"program": "new"}}, layers); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
	var c config
	if err := json.Unmarshal([]byte(files[manifest[0].Config]), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.RootFS.DiffIDs) != 2 || !cmp.Equal([]string{"/program"}, c.Config.Entrypoint) || !cmp.Equal([]string{"localhost/a:2"}, manifest[0].RepoTags) {
		t.Errorf("the config is %+v, the manifest %+v", c, manifest[0])
	}
}
