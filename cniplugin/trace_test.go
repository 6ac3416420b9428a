package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// step is a moment in the life of a plugin: just before the n-th of the system calls of one program that change
// something. A program that is killed there has done all that came before and nothing that comes after.
type step struct {
	victim string // name of the program
	n      int    // counted from 1; 0 never comes
}

// tracer runs a plugin by ptrace(2) and kills one program of it at a step. The others go on.
type tracer struct {
	step
	count  map[string]int // calls that change something, by program
	killed bool           // the step was reached
	exes   map[int]string // program by thread; none before the exec, where a child is still its parent
	execed map[int]bool   // processes
	exit   syscall.WaitStatus
}

// changing are the system calls at which it matters whether they were made.
var changing = map[uint64]bool{
	unix.SYS_OPENAT: true, unix.SYS_WRITE: true, unix.SYS_PWRITE64: true, unix.SYS_RENAMEAT: true, unix.SYS_UNLINKAT: true,
	unix.SYS_MKDIRAT: true, unix.SYS_FSYNC: true, unix.SYS_FCNTL: true, unix.SYS_FLOCK: true, unix.SYS_EXECVE: true,
	unix.SYS_SENDTO: true, unix.SYS_SENDMSG: true, unix.SYS_SETNS: true, unix.SYS_MEMFD_CREATE: true, unix.SYS_IOCTL: true,
	unix.SYS_WAITID: true, unix.SYS_WAIT4: true, unix.SYS_EXIT_GROUP: true,
}

const (
	onThisThread   = 0x20000000 // __WNOTHREAD, missing in the packages
	getSyscallInfo = 0x420e     // PTRACE_GET_SYSCALL_INFO
	traceOptions   = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC
)

// trace runs a plugin until it and all that it started have ended.
func trace(t testing.TB, s step, file string, env []string, stdin []byte) *tracer {
	t.Helper()
	in, err := os.CreateTemp(t.TempDir(), "stdin")
	if err == nil {
		_, err = in.WriteAt(stdin, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	void, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = void.Close() }()
	tr := &tracer{step: s, count: map[string]int{}, exes: map[int]string{}, execed: map[int]bool{}}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: a tracer is a thread
		done <- tr.run(file, &syscall.ProcAttr{Env: env, Files: []uintptr{in.Fd(), void.Fd(), void.Fd()}, Sys: &syscall.SysProcAttr{Ptrace: true}})
	}()
	if err := <-done; err != nil {
		t.Fatalf("trace %s: %v", file, err)
	}
	return tr
}

func (tr *tracer) run(file string, attr *syscall.ProcAttr) error {
	root, err := syscall.ForkExec(file, []string{file}, attr)
	if err != nil {
		return err
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(root, &status, 0, nil); err != nil { // stopped by its exec
		return err
	}
	if err := syscall.PtraceSetOptions(root, traceOptions); err != nil {
		return err
	}
	tr.execed[root] = true
	tr.resume(root, 0)
	for {
		tid, err := syscall.Wait4(-1, &status, unix.WALL|onThisThread, nil)
		switch {
		case err == syscall.EINTR:
		case err == syscall.ECHILD:
			return nil // all have ended
		case err != nil:
			return err
		case !status.Stopped():
			if tid == root {
				tr.exit = status
			}
		default:
			tr.stopped(tid, status)
		}
	}
}

// stopped handles one stop of a thread. An error means that it was killed meanwhile, and its end is reported next.
func (tr *tracer) stopped(tid int, status syscall.WaitStatus) {
	sig := status.StopSignal()
	switch {
	case sig == syscall.SIGTRAP|0x80:
		tr.called(tid)
		sig = 0
	case sig == syscall.SIGTRAP: // a new thread or process, or an exec
		if status.TrapCause() == unix.PTRACE_EVENT_EXEC {
			tr.execed[tid] = true
			delete(tr.exes, tid)
		}
		sig = 0
	case sig == syscall.SIGSTOP: // how a new one begins
		sig = 0
	}
	tr.resume(tid, sig)
}

func (tr *tracer) resume(tid int, sig syscall.Signal) {
	if tr.killed {
		_ = syscall.PtraceCont(tid, int(sig))
		return
	}
	_ = syscall.PtraceSyscall(tid, int(sig))
}

// called is a thread before or after a system call.
func (tr *tracer) called(tid int) {
	if tr.killed {
		return
	}
	var info struct { // linux/ptrace.h, struct ptrace_syscall_info
		op     uint8
		_      [7]byte
		_      [2]uint64
		number uint64
		_      [6]uint64
	}
	n, _, _ := syscall.Syscall6(syscall.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if entry := info.op == 1; n == 0 || !entry || !changing[info.number] {
		return
	}
	program := tr.program(tid)
	tr.count[program]++
	if program == tr.victim && tr.count[program] == tr.n {
		tr.killed = true
		_ = syscall.Kill(groupOf(tid), syscall.SIGKILL)
	}
}

// program is the name of what a thread runs.
func (tr *tracer) program(tid int) string {
	if name, ok := tr.exes[tid]; ok {
		return name
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", tid))
	if err != nil || !tr.execed[groupOf(tid)] {
		return ""
	}
	tr.exes[tid] = filepath.Base(exe)
	return tr.exes[tid]
}

// groupOf is the process of a thread.
func groupOf(tid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	for line := range strings.Lines(string(b)) {
		var n int
		if _, err := fmt.Sscanf(line, "Tgid: %d", &n); err == nil {
			return n
		}
	}
	return tid
}

// thorough reports whether this is part of `make test-reliability` or `make soak`.
func thorough() bool { return slices.Contains([]string{"long", "soak"}, os.Getenv("WEFT_RELIABILITY")) }

// steps lists the moments of a program to be killed at: in the long form all, else about a dozen, others in every run.
func steps(total int) []int {
	var out []int
	stride := 1
	if !thorough() {
		stride = max(1, total/12)
	}
	for n := 1 + rand.IntN(stride); n <= total; n += stride {
		out = append(out, n)
	}
	return out
}
