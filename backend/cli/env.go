package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/weft-cni/weft/subnet"
)

// envPrefix is flannel's.
const envPrefix = "FLANNELD_"

// environ makes a map of KEY=value words; the last one wins, as in a shell.
func environ(words []string) map[string]string {
	m := make(map[string]string, len(words))
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		m[k] = v
	}
	return m
}

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// applyEnv sets every flag that is not on the command line from its variable. An empty value counts as unset. A name
// that no flag has gives a note, an etcd one an error, as on the command line.
func applyEnv(fs *pflag.FlagSet, words []string) ([]string, error) {
	env := environ(words)
	var names []string
	var err error
	fs.VisitAll(func(f *pflag.Flag) {
		name := envName(f.Name)
		names = append(names, name)
		value := env[name]
		if value == "" || f.Changed || err != nil || f.Name == "version" || f.Name == "help" {
			return
		}
		if e := fs.Set(f.Name, value); e != nil {
			err = fmt.Errorf("environment %s=%q: %w", name, value, e)
		}
	})
	if err != nil {
		return nil, err
	}
	for _, e := range etcdFlags() {
		if env[envName(e)] != "" {
			return nil, fmt.Errorf("environment %s: %w", envName(e), explain(fs, fs.Parse([]string{"--" + e + "=x"})))
		}
	}
	return strays(env, names), nil
}

// strays names the variables that look like ours and are not, and those of flannel that no longer matter.
func strays(env map[string]string, names []string) []string {
	var notes []string
	for k, v := range env {
		if v == "" {
			continue
		}
		switch {
		case k == "EVENT_QUEUE_DEPTH" || k == "CONT_WHEN_CACHE_NOT_READY":
			notes = append(notes, k+" has no effect: there is no event queue, and an API server that is late is waited for")
		case strings.HasPrefix(k, envPrefix) && !slices.Contains(names, k):
			note := "environment " + k + " matches no flag"
			if near := subnet.Nearest(k, names); near != "" {
				note += ": did you mean " + near + "?"
			}
			notes = append(notes, note)
		}
	}
	slices.Sort(notes)
	return notes
}
