package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestANetConfThatIsNotThereIsLookedForInWords(t *testing.T) {
	dir := t.TempDir()
	c := &confFile{path: filepath.Join(dir, "net-conf.json"), log: quiet(), changed: func() {}}
	want := func(text string) {
		t.Helper()
		if err := c.sync(t.Context()); err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, text)
		}
	}
	want("is the ConfigMap kube-flannel-cfg mounted at " + dir + "/? --net-config-path names another place")
	for _, name := range []string{"..data", "cni-conf.json", "net-conf.jsn"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want(dir + "/ holds cni-conf.json, net-conf.jsn: the ConfigMap needs a key net-conf.json")
	if err := os.Mkdir(c.path, 0o755); err != nil {
		t.Fatal(err)
	}
	want("is a directory; --net-config-path names the file")
}
