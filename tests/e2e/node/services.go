package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// restartDelay keeps a service that cannot start from spinning.
const restartDelay = time.Second

// service is a program that process 1 keeps running once it can: systemd's part, in little.
type service struct {
	name  string
	args  func() ([]string, bool) // false: not yet
	pid   int
	after time.Time // not started before
}

// servicesOf returns the services that the spec names: containerd at once, the kubelet when kubeadm has written its
// configuration.
func servicesOf(spec Spec) []*service {
	known := map[string]func() ([]string, bool){"containerd": containerdArgs, "kubelet": kubeletArgs}
	var all []*service
	for _, name := range spec.Services {
		if args, ok := known[name]; ok {
			all = append(all, &service{name: name, args: args})
		}
	}
	return all
}

func containerdArgs() ([]string, bool) {
	return []string{"containerd", "--config", "/etc/containerd/config.toml"}, true
}

// kubeletArgs are those of the unit file that kubeadm's packages install. /run/no-kubelet keeps it off, for tests that
// stop it.
func kubeletArgs() ([]string, bool) {
	flags, err := os.ReadFile("/var/lib/kubelet/kubeadm-flags.env")
	if err != nil {
		return nil, false
	}
	for name, wanted := range map[string]bool{"/var/lib/kubelet/config.yaml": true, "/run/no-kubelet": false} {
		if _, err := os.Stat(name); (err == nil) != wanted {
			return nil, false
		}
	}
	args := []string{
		"kubelet", "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf", "--kubeconfig=/etc/kubernetes/kubelet.conf",
		"--config=/var/lib/kubelet/config.yaml",
	}
	_, extra, _ := strings.Cut(strings.TrimSpace(string(flags)), "=")
	return append(args, strings.Fields(strings.Trim(extra, `"`))...), true
}

// keepRunning starts the service if it is not running and can be.
func (s *service) keepRunning() error {
	if s.pid != 0 || time.Now().Before(s.after) {
		return nil
	}
	args, ready := s.args()
	if !ready {
		return nil
	}
	s.after = time.Now().Add(restartDelay)
	log, err := os.OpenFile(filepath.Join("/var/log", s.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", s.name, err)
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return fmt.Errorf("open the null device: %w", err)
	}
	defer null.Close()
	s.pid, err = syscall.ForkExec(filepath.Join(ProgramsDir, args[0]), args, &syscall.ProcAttr{
		Dir:   "/",
		Env:   os.Environ(),
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	return nil
}

// ended notes that the process pid is gone.
func (s *service) ended(pid int, status syscall.WaitStatus) {
	if s.pid != pid {
		return
	}
	fmt.Fprintf(os.Stderr, "%s %s ended: exit %d, signal %d\n", time.Now().Format(time.TimeOnly), s.name, status.ExitStatus(), status.Signal())
	s.pid = 0
}
