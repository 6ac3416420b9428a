package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// askTimeout bounds a question to a plugin. A plugin answers in a few milliseconds.
const askTimeout = 10 * time.Second

var semver = regexp.MustCompile(`\bv?(\d+)\.(\d+)\.(\d+)\b`)

// release is a version a.b.c; the zero value means that a program did not say.
type release [3]int

func (r release) String() string {
	if r == (release{}) {
		return "an unknown version"
	}
	return fmt.Sprintf("v%d.%d.%d", r[0], r[1], r[2])
}

func parseRelease(s string) release {
	m := semver.FindStringSubmatch(s)
	var r release
	for i := range m[min(1, len(m)):] {
		r[i], _ = strconv.Atoi(m[i+1])
	}
	return r
}

// askRelease asks a plugin for its own version: without CNI_COMMAND it prints "CNI bridge plugin v1.10.0" and the protocol
// versions. Plugins before 0.8 answer with an error instead, which counts as unknown.
func askRelease(ctx context.Context, path string) (release, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.WaitDelay = time.Second // a child of a hung plugin may hold its output open
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		return release{}, err // could not be started
	}
	first, _, _ := strings.Cut(string(out), "\n")
	if !strings.HasPrefix(first, "CNI ") {
		return release{}, nil
	}
	return parseRelease(first), nil
}

// unasked are the protocol versions that a plugin is taken to speak which cannot be asked here: every release since 2021 does.
var unasked = []string{oldest, "0.4.0", "1.0.0"}

// askProtocols asks a plugin which versions of the CNI protocol it speaks, lowest first. One that needs libraries of the host does
// not start in this container, and serves the host's runtime all the same: it is taken at its word unheard.
func askProtocols(ctx context.Context, path string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path)
	// Plugins of old want all variables set, even for VERSION.
	cmd.Env = []string{"CNI_COMMAND=VERSION", "CNI_PATH=/", "CNI_NETNS=none", "CNI_IFNAME=none", "CNI_CONTAINERID=none", "PATH=" + os.Getenv("PATH")}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0"}`)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if errors.Is(err, fs.ErrNotExist) && executable(path) {
		return slices.Clone(unasked), nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s for its CNI versions: %w%s", path, err, startCure(path, err))
	}
	var answer struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, fmt.Errorf("ask %s for its CNI versions: %w", path, err)
	}
	slices.SortFunc(answer.SupportedVersions, compareVersions)
	return answer.SupportedVersions, nil
}

// startCure is what helps against a plugin that cannot be started; empty when that is not known.
func startCure(path string, err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf(" (chmod 755 %s; or the file system of %s is mounted noexec)", path, filepath.Dir(path))
	case errors.Is(err, syscall.ENOEXEC):
		return " (it is built for another machine, or cut short: install it anew)"
	}
	return ""
}

// compareVersions orders protocol versions.
func compareVersions(a, b string) int {
	x, y := parseRelease(a), parseRelease(b)
	return slices.Compare(x[:], y[:])
}
