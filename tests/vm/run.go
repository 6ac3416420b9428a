package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// What a run ends with when the program's own status cannot be had.
const (
	StatusTimeout = 124 // the time was up
	StatusNone    = 125 // the machine ended without a status: a kernel panic, most likely
)

// Job is one program to run.
type Job struct {
	Cache   string        // folder for kernel and image, kept between runs
	Args    []string      // the program, static, and its arguments
	Dir     string        // where it starts; this folder is there with all it holds
	Files   []string      // further files and folders, at the same path
	Built   string        // folder of what Build made; without one the machine has no go command
	Env     []string      // KEY=value
	Timeout time.Duration // of the whole machine
	Out     io.Writer     // gets standard output and standard error
	Log     io.Writer     // gets the end of the kernel's console when the machine ends without a status
}

// Run boots the machine, runs the job and returns its exit status.
func Run(ctx context.Context, j Job) (int, error) {
	if err := os.MkdirAll(j.Cache, 0o755); err != nil {
		return 0, err
	}
	k, err := fetch(ctx, j.Cache)
	if err != nil {
		return 0, err
	}
	image, err := base(ctx, k, j.Cache)
	if err != nil {
		return 0, err
	}
	work, err := os.MkdirTemp(j.Cache, "run-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(work) }()
	root := filepath.Join(work, "root.cpio")
	if err := join(root, image, j); err != nil {
		return 0, fmt.Errorf("make the root file system: %w", err)
	}
	return boot(ctx, j, k.image, root, work)
}

// join writes the image of this run: the kernel unpacks archives that follow each other.
func join(to, image string, j Job) error {
	shared, err := os.ReadFile(image)
	if err != nil {
		return err
	}
	var own bytes.Buffer
	a := newArchive(&own)
	if err := a.as(program(j), j.Args[0]); err != nil {
		return err
	}
	a.entry("/job/run", modeFile|0o755, []byte(script(j)))
	a.folder(j.Dir) // which may be empty
	for _, f := range append([]string{j.Dir}, j.Files...) {
		if err := a.tree(f); err != nil {
			return err
		}
	}
	if err := errors.Join(addPrograms(a, j.Built), a.close()); err != nil {
		return err
	}
	return os.WriteFile(to, append(shared, own.Bytes()...), 0o600)
}

// program is where the program of the job lies in the machine.
func program(j Job) string { return "/job/bin/" + filepath.Base(j.Args[0]) }

// script starts the program as it was asked for.
func script(j Job) string {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n")
	for _, kv := range j.Env {
		fmt.Fprintf(&b, "export %s\n", quote(kv))
	}
	fmt.Fprintf(&b, "cd %s\nexec %s", quote(j.Dir), quote(program(j)))
	for _, arg := range j.Args[1:] {
		b.WriteString(" " + quote(arg))
	}
	b.WriteString("\n")
	return b.String()
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// boot runs the machine until it switches itself off. Without the processor flag cx16 the newer kernels do not crash in
// this emulation, with rdrand the first WireGuard handshake does not wait for entropy, and a clock that is trusted costs no
// device access at each look. The self-tests of the kernel's ciphers take a second of a boot, and one in many boots never ends.
// Nor does it look whether its timer ticks: on a machine under load it may find that it does not, and gives up.
func boot(ctx context.Context, j Job, kernel, root, work string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, j.Timeout)
	defer cancel()
	console, status := filepath.Join(work, "console"), filepath.Join(work, "status")
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", "tcg,thread=multi", "-cpu", "qemu64,+rdrand,-cx16", "-M", "pc", "-smp", "2", "-m", "2048",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-chardev", "file,id=con,path="+console, "-serial", "chardev:con",
		"-chardev", "stdio,id=out,signal=off", "-serial", "chardev:out",
		"-chardev", "file,id=rc,path="+status, "-serial", "chardev:rc",
		"-kernel", kernel, "-initrd", root,
		"-append", "console=ttyS0 loglevel=4 panic=-1 oops=panic nokaslr mitigations=off tsc=reliable nowatchdog no_timer_check cryptomgr.notests"+clock())
	var complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = j.Out, &complaints, 5*time.Second
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return 0, fmt.Errorf("%w (Debian's package is qemu-system-x86)", err)
	}
	said, _ := os.ReadFile(status) // without it there is no status, which is told below
	if m := regexp.MustCompile(`rc=(\d+)`).FindSubmatch(said); m != nil {
		return strconv.Atoi(string(m[1]))
	}
	last, _ := os.ReadFile(console)
	_, _ = fmt.Fprintf(j.Log, "%s%s\n", complaints.String(), last[max(0, len(last)-4000):])
	if ctx.Err() != nil {
		return StatusTimeout, nil
	}
	return StatusNone, nil
}
