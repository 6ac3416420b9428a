// Package doctor says in plain words what is wrong, without changing anything.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/weft-cni/weft/subnet/kube"
)

// Options say what to look at, and where the answer goes.
type Options struct {
	BeforeMigration bool
	Kube            kube.ClientOptions
	Out             io.Writer
}

// ErrFindings is returned when there is something to mend first; the text is on Options.Out by then.
var ErrFindings = errors.New("there are differences to settle first")

// Run does what the options ask for.
func Run(ctx context.Context, o Options) error {
	if !o.BeforeMigration {
		return errors.New("say what to check: flanneld doctor --before-migration")
	}
	client, err := kube.NewClient(o.Kube)
	if err != nil {
		return err
	}
	theirs, err := running(ctx, client)
	if err != nil {
		return explain(client.Server, err)
	}
	ours, err := shipped()
	if err != nil {
		return err
	}
	return report(o.Out, theirs, Compare(theirs, ours))
}

// explain adds to what the API server, or the way to it, has refused what to do about it. The agent's own account may not read what
// the doctor reads.
func explain(server string, err error) error {
	var way *url.Error
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: the doctor reads DaemonSets and ConfigMaps of all namespaces and Nodes; give it the kubeconfig of "+
			"somebody who may: --kubeconfig-file=FILE", err)
	case apierrors.IsUnauthorized(err), errors.As(err, &way):
		return errors.New(kube.Explain(server, err))
	}
	return err
}

// report prints one line a finding, with its cure.
func report(w io.Writer, theirs Install, findings []Finding) error {
	_, _ = fmt.Fprintf(w, "flannel runs in namespace %s as DaemonSet %s\n", theirs.Namespace, theirs.DaemonSet)
	if len(findings) == 0 {
		_, _ = fmt.Fprintln(w, "nothing differs that matters: apply the manifest")
		return nil
	}
	stop := 0
	for _, f := range findings {
		level := "note"
		if f.Stop {
			level, stop = "STOP", stop+1
		}
		_, _ = fmt.Fprintf(w, "%s  %s: %s; %s\n", level, f.What, f.Text, f.Cure)
	}
	if stop > 0 {
		return ErrFindings
	}
	return nil
}
