package libcni112

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

const inside = "LIBCNI112_TEST_HOST"

// TestMain moves the tests into namespaces of their own, which play the host.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=yes")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	} else if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// plugins builds the plugin and gathers the delegates at the versions of the product's go.mod.
func plugins(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	run(t, root, "go", "build", "-o", bin+"/flannel", "./cniplugin")
	for _, name := range []string{"bridge", "host-local", "portmap", "bandwidth"} {
		if err := os.Symlink(run(t, root, "go", "tool", "-n", name), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

func TestAnOldRuntimeLoadsTheListAndRunsItsVerbs(t *testing.T) {
	if os.Getenv(inside) == "" {
		t.Skip("needs root to make network namespaces")
	}
	for _, mount := range [][]string{{"--make-rprivate", "/"}, {"-t", "sysfs", "sysfs", "/sys"}} {
		run(t, "", "mount", mount...)
	}
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, "", "mount", "-t", "tmpfs", "tmpfs", "/run/netns")
	run(t, "", "ip", "link", "set", "lo", "up")
	bin, dir, ctx := plugins(t), t.TempDir(), context.Background()
	env := "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	if err := os.WriteFile(dir+"/subnet.env", []byte(env), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, version := range []string{"0.3.1", "0.4.0", "1.0.0"} {
		t.Run(version, func(t *testing.T) {
			conf := fmt.Sprintf(`{"name":"cbr0","cniVersion":%q,"cniVersions":["0.3.1","0.4.0","1.0.0","1.1.0"],"plugins":[
				{"type":"flannel","subnetFile":"%[2]s/subnet.env","dataDir":"%[2]s/flannel","ipam":{"dataDir":"%[2]s/networks"},"delegate":{"hairpinMode":true,"isDefaultGateway":true}},
				{"type":"portmap","capabilities":{"portMappings":true}},{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`, version, dir)
			list, err := libcni.ConfListFromBytes([]byte(conf))
			if err != nil {
				t.Fatal(err)
			}
			cni := libcni.NewCNIConfigWithCacheDir([]string{bin}, dir, nil)
			if _, err := cni.ValidateNetworkList(ctx, list); err != nil {
				t.Fatal(err)
			}
			pod := fmt.Sprintf("pod%d", i)
			run(t, "", "ip", "netns", "add", pod)
			rt := &libcni.RuntimeConf{ContainerID: pod, NetNS: "/run/netns/" + pod, IfName: "eth0"}
			result, err := cni.AddNetworkList(ctx, list, rt)
			if err != nil {
				t.Fatal(err)
			}
			if result.Version() != version {
				t.Errorf("the result has version %s", result.Version())
			}
			run(t, "", "ip", "netns", "exec", pod, "ping", "-c1", "-W2", "10.244.1.1")
			if version != "0.3.1" {
				if err := cni.CheckNetworkList(ctx, list, rt); err != nil {
					t.Errorf("CHECK: %v", err)
				}
			}
			for range 2 {
				if err := cni.DelNetworkList(ctx, list, rt); err != nil {
					t.Errorf("DEL: %v", err)
				}
			}
			run(t, "", "ip", "netns", "del", pod)
			left, _ := filepath.Glob(dir + "/networks/cbr0/10.*")
			records, _ := filepath.Glob(dir + "/flannel/[a-z]*")
			if len(left)+len(records) > 0 {
				t.Errorf("left %q, %q", left, records)
			}
		})
	}
}
