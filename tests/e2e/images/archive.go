package images

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
)

// Image is a container image to be written as a docker archive.
type Image struct {
	Name       string   // repository:tag
	Aliases    []string // more names for the same image
	Tree       Tree
	Entrypoint []string
	Cmd        []string
}

// config is what an image's config file says, in the form both Docker and OCI read.
type config struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		Env        []string
		Entrypoint []string `json:",omitempty"`
		Cmd        []string `json:",omitempty"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// WriteArchive writes the image to file: manifest.json, the config and one layer.
func (i *Image) WriteArchive(file string) error {
	layer, digest, err := i.Tree.layer()
	if err != nil {
		return fmt.Errorf("write the layer of %s: %w", i.Name, err)
	}
	defer os.Remove(layer.Name())
	defer layer.Close()
	configText, err := i.config("sha256:" + digest)
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("make the archive of %s: %w", i.Name, err)
	}
	defer out.Close()
	if err := i.assemble(tar.NewWriter(out), configText, layer); err != nil {
		return fmt.Errorf("write the archive of %s: %w", i.Name, err)
	}
	return out.Close()
}

func (i *Image) config(diffID string) ([]byte, error) {
	c := config{Architecture: runtime.GOARCH, OS: "linux"}
	c.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/"}
	c.Config.Entrypoint, c.Config.Cmd = i.Entrypoint, i.Cmd
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{diffID}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("write the config of %s: %w", i.Name, err)
	}
	return text, nil
}

func (i *Image) assemble(out *tar.Writer, configText []byte, layer *os.File) error {
	sum := sha256.Sum256(configText)
	configName := hex.EncodeToString(sum[:]) + ".json"
	manifest, err := json.Marshal([]loadable{{Config: configName, RepoTags: append([]string{i.Name}, i.Aliases...), Layers: []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	return errors.Join(
		addText(out, "manifest.json", manifest), addText(out, configName, configText), addFile(out, "layer.tar", layer), out.Close())
}
