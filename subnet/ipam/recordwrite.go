package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// Durable waits until a record will outlive a power cut.
type Durable func() error

// tempSuffix ends the names of records that are being written.
const tempSuffix = ".tmp"

// tempName is where a record is written; the lock of the attachment makes one name enough.
func tempName(o Owner) string { return "." + RecordName(o) + tempSuffix }

// Write stores a record: at once for every reader, whole or not at all, and for good when the Durable returns. The disk
// works meanwhile, so that a pod does not wait first for the disk and then for its delegate. A power cut in between
// can leave an empty record, but also no pod; whoever deletes it works it out afresh.
func (r Records) Write(o Owner, raw []byte) (Durable, error) {
	path := filepath.Join(r.Dir, RecordName(o))
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of records: %w", subnet.Cure(path, err))
	}
	temp := filepath.Join(r.Dir, tempName(o))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write record: %w", subnet.Cure(path, err))
	}
	if _, err = f.Write(raw); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		err = subnet.Cure(path, err)
		return nil, fmt.Errorf("write record: %w", errors.Join(err, f.Close(), os.Remove(temp)))
	}
	done := make(chan error, 1)
	go func() { done <- errors.Join(f.Sync(), f.Close(), subnet.OSDisk{}.SyncDir(r.Dir)) }()
	return func() error {
		if err := <-done; err != nil {
			return fmt.Errorf("write record: %w", subnet.Cure(path, err))
		}
		return nil
	}, nil
}

// RemoveTemps removes what writers that were killed before some time left.
func (r Records) RemoveTemps(before time.Time) error {
	entries, err := os.ReadDir(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list records: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") || !strings.HasSuffix(e.Name(), tempSuffix) {
			continue
		}
		if info, err := e.Info(); err == nil && info.ModTime().Before(before) {
			errs = append(errs, os.Remove(filepath.Join(r.Dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
