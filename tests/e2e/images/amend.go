package images

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Amend makes another image of an archive: the same, under another name, with the files of tree in place of its own.
type Amend struct {
	From string // the archive that is there
	Name string // the new image's
	Tree Tree
}

// loadable is the manifest.json of a docker archive.
type loadable struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// WriteArchive writes the new image to file.
func (a *Amend) WriteArchive(file string) error {
	manifest, config, err := readArchive(a.From)
	if err != nil {
		return fmt.Errorf("read %s: %w", a.From, err)
	}
	layer, digest, err := a.Tree.layer()
	if err != nil {
		return fmt.Errorf("write the layer of %s: %w", a.Name, err)
	}
	defer os.Remove(layer.Name())
	defer layer.Close()
	configText, err := addLayer(config, "sha256:"+digest)
	if err != nil {
		return fmt.Errorf("amend the config of %s: %w", a.Name, err)
	}
	configSum := sha256.Sum256(configText)
	old := manifest.Config
	manifest = loadable{
		Config: hex.EncodeToString(configSum[:]) + ".json", RepoTags: []string{a.Name}, Layers: append(manifest.Layers, digest+".tar"),
	}
	manifestText, err := json.Marshal([]loadable{manifest})
	if err != nil {
		return fmt.Errorf("write the manifest of %s: %w", a.Name, err)
	}
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("make the archive of %s: %w", a.Name, err)
	}
	defer out.Close()
	w := tar.NewWriter(out)
	if err := errors.Join(
		copyBut(w, a.From, "manifest.json", old), addFile(w, digest+".tar", layer),
		addText(w, manifest.Config, configText), addText(w, "manifest.json", manifestText), w.Close(),
	); err != nil {
		return fmt.Errorf("write the archive of %s: %w", a.Name, err)
	}
	return out.Close()
}

// readArchive reads what an archive says of itself. The manifest comes last in some, so it is gone through twice.
func readArchive(file string) (loadable, []byte, error) {
	text, err := readEntry(file, "manifest.json")
	if err != nil {
		return loadable{}, nil, err
	}
	var list []loadable
	if err := json.Unmarshal(text, &list); err != nil {
		return loadable{}, nil, fmt.Errorf("read its manifest: %w", err)
	}
	if len(list) != 1 {
		return loadable{}, nil, fmt.Errorf("it holds %d images instead of one", len(list))
	}
	config, err := readEntry(file, list[0].Config)
	return list[0], config, err
}

func readEntry(file, name string) ([]byte, error) {
	var text []byte
	err := eachEntry(file, func(h *tar.Header, content io.Reader) (err error) {
		if h.Name == name {
			text, err = io.ReadAll(content)
		}
		return err
	})
	if err == nil && text == nil {
		err = fmt.Errorf("it holds no %s", name)
	}
	return text, err
}

func eachEntry(file string, do func(*tar.Header, io.Reader) error) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	r := tar.NewReader(in)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := do(header, r); err != nil {
			return err
		}
	}
}

// addLayer keeps all that a config says, known or not.
func addLayer(config []byte, diffID string) ([]byte, error) {
	var all map[string]any
	if err := json.Unmarshal(config, &all); err != nil {
		return nil, err
	}
	rootfs, ok := all["rootfs"].(map[string]any)
	if !ok {
		return nil, errors.New("it has no rootfs")
	}
	ids, _ := rootfs["diff_ids"].([]any) // none is an image without layers
	rootfs["diff_ids"] = append(ids, diffID)
	if history, ok := all["history"].([]any); ok {
		all["history"] = append(history, map[string]any{"created_by": "amended"})
	}
	return json.Marshal(all)
}

func copyBut(w *tar.Writer, file string, but ...string) error {
	return eachEntry(file, func(h *tar.Header, content io.Reader) error {
		for _, name := range but {
			if h.Name == name {
				return nil
			}
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.Copy(w, content)
		return err
	})
}

func addText(w *tar.Writer, name string, text []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err := w.Write(text)
	return err
}

func addFile(w *tar.Writer, name string, file *os.File) error {
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = io.Copy(w, file)
	return err
}
