package gate

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// watchFolder opens a file from which something can be read whenever a file came into the folder or left it (inotify(7)).
// What is read is of no use: whoever reads looks at the folder.
func watchFolder(dir string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch the notes: %w", err)
	}
	w := os.NewFile(uintptr(fd), "inotify")
	const events = unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	if _, err := unix.InotifyAddWatch(fd, dir, events); err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("watch the notes: %w", err)
	}
	return w, nil
}
