package main

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// stdio is what another plugin reads and writes: files in memory. With pipes a goroutine for each would have to be at
// hand while the plugin runs, which costs a pod half a millisecond, and a child that a plugin leaves behind would hold
// them open; and a plugin whose caller was killed would be killed by its own answer.
type stdio struct{ in, out, err int }

func newStdio(input []byte) (stdio, error) {
	var fds [3]int
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		fd, err := memfd(name)
		if err != nil {
			stdio{fds[0], fds[1], fds[2]}.close()
			return stdio{}, fmt.Errorf("make a file in memory: %w", err)
		}
		fds[i] = fd
	}
	s := stdio{fds[0], fds[1], fds[2]}
	// Not write(2), which would move the place from where the plugin reads.
	n, err := unix.Pwrite(s.in, input, 0)
	if err == nil && n < len(input) {
		err = io.ErrShortWrite
	}
	if err != nil {
		s.close()
		return stdio{}, fmt.Errorf("write the plugin's input: %w", err)
	}
	return s, nil
}

// memfd makes a file that cannot be executed, which hardened hosts insist on (vm.memfd_noexec=2). Kernels before 6.3 do not
// know the flag.
func memfd(name string) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		return unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	return fd, err
}

func (s stdio) files() []uintptr { return []uintptr{uintptr(s.in), uintptr(s.out), uintptr(s.err)} }

func (s stdio) close() {
	for _, fd := range []int{s.in, s.out, s.err} {
		if fd > 0 {
			_ = unix.Close(fd)
		}
	}
}

// maxOutput bounds what is taken of a plugin's words.
const maxOutput = 4 << 20

// read gives what was written into a file in memory.
func read(fd int) []byte {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Size == 0 {
		return nil
	}
	b := make([]byte, min(st.Size, maxOutput))
	n, err := unix.Pread(fd, b, 0)
	if err != nil {
		return nil
	}
	return b[:n]
}
