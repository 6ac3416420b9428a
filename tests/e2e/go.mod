module github.com/weft-cni/weft/tests/e2e

go 1.26.0

require golang.org/x/sys v0.50.0 // indirect
