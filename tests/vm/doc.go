// Package vm runs a program as root on Debian's own kernel, in a virtual machine without network or disk: for what the
// kernel of this machine lacks (WireGuard, IPIP, SCTP, netem), and to run the tests on a second, older kernel.
//
// The machine is emulated in software, so it needs no rights beyond those of a user. Its root file system is an
// initramfs of two parts: one with the programs that tests call and the modules, kept in the cache, and one with the
// program of this run, made each time. Output comes back byte for byte as the program writes it, and so does its status.
package vm
