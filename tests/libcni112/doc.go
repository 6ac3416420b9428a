// Package libcni112 runs the CNI plugin under libcni 1.1.2, as runtimes of 2022 link it: they know neither STATUS nor
// GC nor "cniVersions", and have to load our list all the same. It is a module of its own, since the product's tests
// use a newer libcni.
package libcni112
