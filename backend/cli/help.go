package cli

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"
)

// intro stands above the flags; verbs come first since they are what a new user looks for.
const intro = `flanneld is the node agent of weft, a VXLAN pod network for Kubernetes.

Usage:
  flanneld [flags]                    run the agent
  flanneld install-cni [flags]        install the CNI plugins on this node
  flanneld uninstall [flags]          remove all that is ours from this node
  flanneld uninstall --keep-dataplane give this node back to flannel, with pods and traffic going on
  flanneld doctor --before-migration  compare this cluster's flannel with weft
  flanneld policy audit               list the policies, whom they select, and which open connections they cut
  flanneld policy trace               say whether a connection is allowed, and by which policy
  flanneld version                    print version, commit and Go version

Each flag can be set as FLANNELD_<FLAG> in the environment (--ip-masq: FLANNELD_IP_MASQ); the command line wins.
The node name comes from NODE_NAME, else from the pod named by POD_NAME and POD_NAMESPACE.
`

// printHelp prints the flags under their headings.
func printHelp(w io.Writer, fs *pflag.FlagSet) {
	_, _ = fmt.Fprint(w, intro)
	for _, g := range groups() {
		part := pflag.NewFlagSet(g, pflag.ContinueOnError)
		part.SortFlags = false
		fs.VisitAll(func(f *pflag.Flag) {
			if f.Annotations[group][0] == g {
				part.AddFlag(f)
			}
		})
		_, _ = fmt.Fprintf(w, "\n%s:\n%s", g, part.FlagUsagesWrapped(110))
	}
}
