package vm

// cycles reads the processor's time stamp counter.
func cycles() uint64
