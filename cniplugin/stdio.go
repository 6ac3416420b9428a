package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxOutput bounds what is read of a plugin's output; a result has about a kilobyte.
const maxOutput = 4 << 20

// stdio is the standard files of a plugin, in memory.
type stdio struct{ in, out, err *os.File }

func newStdio(input []byte) (stdio, error) {
	var s stdio
	for name, f := range map[string]**os.File{"in": &s.in, "out": &s.out, "err": &s.err} {
		fd, err := unix.MemfdCreate("cni-"+name, unix.MFD_CLOEXEC)
		if err != nil {
			s.close()
			return s, fmt.Errorf("make a file in memory: %w", err)
		}
		*f = os.NewFile(uintptr(fd), name)
	}
	_, err := s.in.Write(input)
	if _, seekErr := s.in.Seek(0, io.SeekStart); err != nil || seekErr != nil {
		s.close()
		return s, fmt.Errorf("write the input: %w", errors.Join(err, seekErr))
	}
	return s, nil
}

func (s stdio) close() {
	for _, f := range []*os.File{s.in, s.out, s.err} {
		_ = f.Close() // in memory, and nil is fine
	}
}

// readBack gives what was written to one of the files. What cannot be read is as if it was not written.
func readBack(f *os.File) []byte {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxOutput))
	if err != nil {
		return nil
	}
	return b
}
