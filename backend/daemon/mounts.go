package daemon

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// mountPeriod is how often the directories are looked at: a stat each.
const mountPeriod = time.Second

// mounts are directories of the host that are mounted where we see them. Whoever removes one on the host, as people do with
// /opt/cni/bin and /etc/cni/net.d, and as a package does, leaves us with a directory that has no name any more: nothing can be
// made in it, and the new one of that name is not ours to see. Only a start anew, for which the runtime mounts it, cures that.
type mounts map[string]uint64 // mount id of each that was well when we started

// newMounts looks at the directories. One that is not there, or no mount of its own, is made anew by who writes to it.
func newMounts(dirs []string) mounts {
	m := mounts{}
	for _, dir := range dirs {
		here, there := mountOf(dir)
		above, _ := mountOf(filepath.Dir(dir))
		if there && here != above {
			m[dir] = here
		}
	}
	return m
}

// lost names a directory that is no longer the one of the host.
func (m mounts) lost() error {
	for dir, was := range m {
		if now, there := mountOf(dir); !there || now != was {
			return fmt.Errorf("%s was removed or mounted anew on the host, and what is mounted here has no name any more: "+
				"starting anew, so that the one of now is mounted; the data plane stays", dir)
		}
	}
	return nil
}

// watch returns when ctx ends, or with what lost says.
func (m mounts) watch(ctx context.Context) error {
	tick := time.NewTicker(mountPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := m.lost(); err != nil {
				return err
			}
		}
	}
}

// mountOf tells which mount a directory is seen through, and whether it is there: one without a name has no links.
func mountOf(dir string) (id uint64, there bool) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MNT_ID|unix.STATX_NLINK, &st); err != nil {
		return 0, false
	}
	return st.Mnt_id, st.Nlink > 0
}

// mounted lists the directories of the host that the manifest mounts and that people remove.
func (p Paths) mounted() []string {
	return []string{p.CNIBin, p.CNIConf, p.CNIData, p.StateDir, filepath.Dir(p.SubnetFile)}
}
