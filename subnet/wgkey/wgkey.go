// Package wgkey keeps the node's private WireGuard key in a file: made on the node, readable by root alone, and the same
// after every restart and reboot, since the peers know the node by it.
package wgkey

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// Name is the name of the key's file, ours and flannel's.
const Name = "wgkey"

// maxFile bounds what is read of a file; a key has 44 bytes.
const maxFile = 4 << 10

// File is where the key is kept.
type File struct {
	Path   string        // the key's place
	Adopt  string        // a key to begin with when there is none, and a copy of ours for whom there is no other place; "" for none
	Writer subnet.Writer // writes durably
}

// In is the key's file in a directory that outlives the boot. It begins with the key that flannel has in the other one, which
// does not, and leaves its own there: under flannel's manifest nothing else outlives the pod. A path of the operator's own (WIREGUARD_KEY_FILE) takes the place of both.
func In(state, run, own string) File {
	if own != "" {
		return File{Path: own}
	}
	return File{Path: filepath.Join(state, Name), Adopt: filepath.Join(run, Name)}
}

// Load reads the key. Without one it adopts the other program's, and without that it makes one; a new key is on the disk
// before anybody hears of it. note is what the log should say, or "". A file with anything else than a key in it, as a crash
// leaves it, is replaced: nobody can have its key. A file that cannot be read is an error and stays as it is.
func (f File) Load() (key subnet.Secret, note string, err error) {
	key, err = read(f.Path)
	switch {
	case err == nil:
		return key, f.tighten(), nil
	case errors.Is(err, fs.ErrNotExist):
		if f.Adopt != "" {
			if key, err = read(f.Adopt); err == nil {
				return f.keep(key, fmt.Sprintf("the WireGuard key of %s is kept in %s from now on", f.Adopt, f.Path))
			}
		}
		note = fmt.Sprintf("a WireGuard key is made in %s", f.Path)
	case errors.Is(err, errNoKey):
		note = fmt.Sprintf("the WireGuard key in %s cannot be used, a new one takes its place: %v", f.Path, err)
	default:
		return subnet.Secret{}, "", fmt.Errorf("read the WireGuard key: %w", subnet.Cure(f.Path, err))
	}
	return f.keep(random(), note)
}

// Renew replaces the key: two nodes have it, since one machine is a copy of the other.
func (f File) Renew() (subnet.Secret, error) {
	key, _, err := f.keep(random(), "")
	return key, err
}

// HandBack gives flannel the key by which the peers know this node, as flannel writes it: else it makes another one, and the
// peers keep the old one for ever. It tells whether there was one to give.
func (f File) HandBack() (bool, error) {
	if f.Adopt == "" {
		return false, nil // one file for both
	}
	key, err := read(f.Path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoKey) {
		return false, nil
	}
	if err == nil {
		err = f.put(f.Adopt, base64.StdEncoding.EncodeToString(key[:]), 0o400)
	}
	if err != nil {
		return false, fmt.Errorf("hand the WireGuard key over to flannel: %w", err)
	}
	return true, nil
}

func random() (key subnet.Secret) {
	_, _ = rand.Read(key[:]) // never fails
	return clamp(key)
}

// keep gives a key out once it is on the disk.
func (f File) keep(key subnet.Secret, note string) (subnet.Secret, string, error) {
	if err := f.write(key); err != nil {
		return subnet.Secret{}, "", err
	}
	if f.Adopt == "" {
		return key, note, nil
	}
	if have, err := read(f.Adopt); err != nil || have != key {
		_, err = f.HandBack()
		if err != nil { // then the next pod under flannel's manifest has another key, which its peers hear of
			note = strings.TrimPrefix(note+"; "+err.Error(), "; ")
		}
	}
	return key, note, nil
}

func (f File) write(key subnet.Secret) error {
	return f.put(f.Path, base64.StdEncoding.EncodeToString(key[:])+"\n", 0o600)
}

// put puts a key on the disk. What was there may have been readable by others, so it goes first.
func (f File) put(path, text string, perm fs.FileMode) error {
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm() != perm {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("replace the WireGuard key: %w", subnet.Cure(path, err))
		}
	}
	if err := f.Writer.WriteFile(path, []byte(text), perm); err != nil {
		return fmt.Errorf("keep the WireGuard key: %w", err)
	}
	return nil
}

// tighten takes the key from other users' eyes. A file that cannot be changed, such as a mounted Secret, is its owner's care.
func (f File) tighten() string {
	info, err := os.Stat(f.Path)
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return ""
	}
	if err := os.Chmod(f.Path, 0o600); err != nil {
		return fmt.Sprintf("other users can read the WireGuard key: %v", err)
	}
	return fmt.Sprintf("other users could read the WireGuard key in %s; now only root can: make a new one if anybody has (rm %s)", f.Path, f.Path)
}

// errNoKey tells of a file without a usable key in it.
var errNoKey = errors.New("it holds no key")

// read reads a key, as wg genkey writes it or as flannel does, without the line end.
func read(path string) (subnet.Secret, error) {
	file, err := os.Open(path)
	if err != nil {
		return subnet.Secret{}, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return subnet.Secret{}, err
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return subnet.Secret{}, fmt.Errorf("%w: it is empty", errNoKey)
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != len(subnet.Secret{}) || subnet.Secret(raw).IsZero() {
		return subnet.Secret{}, fmt.Errorf("%w: want 32 bytes in base64, as wg genkey prints them", errNoKey)
	}
	return clamp(subnet.Secret(raw)), nil
}

// clamp makes of any 32 bytes the private key that they stand for (RFC 7748, section 5): the kernel says it that way.
func clamp(key subnet.Secret) subnet.Secret {
	key[0] &= 248
	key[31] = key[31]&127 | 64
	return key
}
