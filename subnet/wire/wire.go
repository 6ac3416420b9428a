// Package wire takes lists in the Kubernetes form of protobuf apart, one object at a time, without knowing what an object
// is: a list of 5,000 Nodes is 300 MB, and nobody needs to hold it. It stands apart from the client so that it can be
// fuzzed at full speed.
//
// Four magic bytes are followed by runtime.Unknown, whose field 2 is the list, whose field 1 is its metadata and whose
// fields 2 are the objects. All of these are length-delimited.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding
package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Magic begins every answer in protobuf.
const Magic = "k8s\x00"

const (
	fieldOne = 1<<3 | 2
	fieldTwo = 2<<3 | 2
	// etcd refuses values over 1.5 MB; a length beyond this is no object.
	mostBytes = 32 << 20
)

// Sink takes what a list holds. The bytes belong to it for the time of the call only.
type Sink struct {
	Meta   func([]byte) error
	Object func([]byte) error
}

// IsList reports whether what comes next is in protobuf.
func IsList(r *bufio.Reader) bool {
	start, err := r.Peek(len(Magic))
	return err == nil && string(start) == Magic
}

// ReadList reads a list to its end. A list that is cut off is an error: a short one must not pass for a whole one.
func ReadList(r *bufio.Reader, sink Sink) error {
	if !IsList(r) {
		return errors.New("it is not in protobuf")
	}
	if _, err := r.Discard(len(Magic)); err != nil {
		return err
	}
	for {
		tag, size, err := header(r)
		if err != nil {
			return err
		}
		if tag == fieldTwo {
			body := &io.LimitedReader{R: r, N: int64(size)}
			err := sink.read(bufio.NewReader(body))
			if err == nil && body.N > 0 {
				err = io.ErrUnexpectedEOF // between two objects
			}
			return err
		}
		if size > mostBytes {
			return fmt.Errorf("a field of %d bytes", size)
		}
		if _, err := r.Discard(int(size)); err != nil {
			return err
		}
	}
}

// read reads the list itself, up to the end of r.
func (s Sink) read(r *bufio.Reader) error {
	var buf bytes.Buffer // grows with what comes, not with what is promised
	for n := 0; ; n++ {
		if _, err := r.Peek(1); errors.Is(err, io.EOF) {
			return nil
		}
		tag, size, err := header(r)
		if err != nil {
			return err
		}
		if size > mostBytes {
			return fmt.Errorf("a field of %d bytes", size)
		}
		buf.Reset()
		if _, err := io.CopyN(&buf, r, int64(size)); err != nil {
			return fmt.Errorf("field %d: %w", n, noEOF(err))
		}
		switch tag {
		case fieldOne:
			err = s.Meta(buf.Bytes())
		case fieldTwo:
			err = s.Object(buf.Bytes())
		}
		if err != nil {
			return fmt.Errorf("field %d: %w", n, err)
		}
	}
}

// header reads a field's tag and length.
func header(r *bufio.Reader) (tag, size uint64, err error) {
	if tag, err = binary.ReadUvarint(r); err != nil {
		return 0, 0, noEOF(err)
	}
	if tag&7 != 2 {
		return 0, 0, fmt.Errorf("field %d is not length-delimited", tag>>3)
	}
	size, err = binary.ReadUvarint(r)
	return tag, size, noEOF(err)
}

// noEOF is for places at which nothing may end.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
