module github.com/weft-cni/weft/tests/e2e

go 1.26.8

require (
	github.com/google/go-cmp v0.7.0 // what tests want, and what they got
	github.com/weft-cni/weft v0.0.0 // the page of faults, tests/reliability/table
	golang.org/x/sys v0.50.0 // namespaces, mounts, locks
)

replace github.com/weft-cni/weft => ../..
