//go:build !amd64

package vm

// cycles stands for a counter that other processors have, too, but that the emulation does not hand on.
func cycles() uint64 { return 0 }
