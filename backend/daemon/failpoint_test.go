package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// mortalEnv, in the environment, makes the test's binary an agent: its value is a mortal as JSON.
const mortalEnv = "WEFT_TEST_AGENT"

func TestMain(m *testing.M) {
	text := os.Getenv(mortalEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	if err := runMortal(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// mortal is an agent that ends itself by SIGKILL before the step of the given number, or is asked to stop by SIGTERM; 0 is an
// agent that lives.
type mortal struct {
	Config Config
	Dies   int
	Stops  int
	Steps  string // file that the steps are written to, one a line, and in the end how long the stop took
}

func runMortal(text string) error {
	var m mortal
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	steps, err := os.OpenFile(m.Steps, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	f := &failpoints{dies: m.Dies, stops: m.Stops, steps: steps}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err = RunWith(ctx, m.Config, slog.New(slog.NewTextHandler(os.Stderr, nil)), f.seams())
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.asked.IsZero() {
		_, _ = fmt.Fprintf(steps, "%s%s\n", stoppedAfter, time.Since(f.asked))
	}
	return err
}

const stoppedAfter = "stopped after "

// failpoints counts the steps that an agent takes on its node, and ends it before one of them.
type failpoints struct {
	mu    sync.Mutex // guards what follows
	n     int
	dies  int
	stops int
	asked time.Time // when the stop was asked for
	steps *os.File
}

// at is called before each step.
func (f *failpoints) at(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	_, _ = fmt.Fprintf(f.steps, "%d "+format+"\n", append([]any{f.n}, args...)...)
	if f.n == f.stops {
		f.asked = time.Now()
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
	}
	if f.n == f.dies {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // nothing else happens in the moment until the signal arrives
	}
}

func (f *failpoints) seams() Seams {
	return Seams{
		Kernel: func(k Kernel) Kernel { return mortalKernel{k, f} },
		NFT:    func(n knftables.Interface) knftables.Interface { return mortalNFT{n, f} },
		Disk:   mortalDisk{f},
	}
}

type mortalKernel struct {
	Kernel
	f *failpoints
}

func (k mortalKernel) Apply(ctx context.Context, op kernel.Op) error {
	k.f.at("before %s", op)
	return k.Kernel.Apply(ctx, op)
}

type mortalNFT struct {
	knftables.Interface
	f *failpoints
}

func (n mortalNFT) Run(ctx context.Context, tx *knftables.Transaction) error {
	n.f.at("before nft, %d operations", tx.NumOperations())
	err := n.Interface.Run(ctx, tx)
	n.f.at("after nft")
	return err
}

// mortalDisk dies between any two steps of a write, and half-way through one.
type mortalDisk struct{ f *failpoints }

func (d mortalDisk) Create(dir, pattern string, perm fs.FileMode) (subnet.DiskFile, error) {
	name := filepath.Join(dir, strings.TrimPrefix(strings.TrimSuffix(pattern, ".tmp*"), "."))
	d.f.at("create %s", name)
	file, err := subnet.OSDisk{}.Create(dir, pattern, perm)
	if err != nil {
		return nil, err
	}
	d.f.at("write %s", name)
	return mortalFile{file, d.f, name}, nil
}

func (d mortalDisk) Rename(from, to string) error {
	d.f.at("rename %s", to)
	return subnet.OSDisk{}.Rename(from, to)
}

func (d mortalDisk) SyncDir(dir string) error {
	d.f.at("sync %s", dir)
	return subnet.OSDisk{}.SyncDir(dir)
}

type mortalFile struct {
	subnet.DiskFile
	f    *failpoints
	name string
}

func (m mortalFile) Write(data []byte) (int, error) {
	half := len(data) / 2
	n, err := m.DiskFile.Write(data[:half])
	if err != nil {
		return n, err
	}
	m.f.at("write the other half of %s", m.name)
	rest, err := m.DiskFile.Write(data[half:])
	return n + rest, err
}

func (m mortalFile) Sync() error {
	m.f.at("fsync %s", m.name)
	return m.DiskFile.Sync()
}
