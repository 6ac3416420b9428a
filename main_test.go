package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExitCodesTellASupervisorWhatHappened(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		out  string
	}{
		{[]string{"flanneld", "--version"}, 0, "flanneld dev (commit unknown, go"},
		{[]string{"flanneld", "version"}, 0, "flanneld dev"},
		{[]string{"flanneld", "--help"}, 0, "Usage:"},
		{[]string{"flanneld", "install-cni", "-h"}, 0, "Usage:"},
		{[]string{"flanneld", "--nonsense"}, 2, "unknown flag --nonsense"},
		{[]string{"flanneld", "unistall"}, 2, "did you mean uninstall"},
		{[]string{"flanneld", "version", "extra"}, 2, `"extra" is not a flag`},
		{[]string{"flanneld", "--ip-masq", "true"}, 2, "takes its value with ="},
		{[]string{"flanneld"}, 2, "set NODE_NAME"},
		{[]string{"flanneld", "doctor"}, 1, "--before-migration"},
		{[]string{"/opt/bin/install-conf", "a"}, 1, "usage: install-conf"},
		{[]string{"flanneld", "install-cni", "--cni-source-dir=/nonexistent"}, 1, "no CNI plugins to install from"},
	} {
		var out, errs strings.Builder
		code := run(t.Context(), c.args, nil, streams{out: &out, err: &errs})
		if code != c.code || !strings.Contains(out.String()+errs.String(), c.out) {
			t.Errorf("%q: code %d, output %q%q; want %d and %q", c.args, code, out.String(), errs.String(), c.code, c.out)
		}
		if code == 2 && strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%q: not one line: %q", c.args, errs.String())
		}
	}
}

func TestTheImageAnswersToInstallConf(t *testing.T) {
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "cni-conf.json"), filepath.Join(dir, "net.d", "10-flannel.conflist")
	if err := os.WriteFile(src, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code := run(t.Context(), []string{"/opt/bin/install-conf", src, dst}, nil, streams{out: os.Stdout, err: os.Stderr}); code != 0 {
		t.Fatalf("code %d", code)
	}
	if got, err := os.ReadFile(dst); err != nil || string(got) != "{}" {
		t.Errorf("%q, %v", got, err)
	}
}
