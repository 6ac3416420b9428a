module github.com/weft-cni/weft/tests/libcni112

go 1.26.8

// The libcni of runtimes that know nothing of STATUS and GC: it must stay at this version.
require github.com/containernetworking/cni v1.1.2
