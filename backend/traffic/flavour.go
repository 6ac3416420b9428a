package traffic

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
)

// lockWait bounds how long a write waits for the xtables lock, in seconds; the round after it tries again.
const lockWait = "5"

// The two kernel engines behind the name iptables. Packets meet the chains of both.
const (
	engineNFT    = "nft"
	engineLegacy = "legacy"
)

// flavour is iptables of one family over one engine.
type flavour struct {
	family  family
	engine  string
	list    []string // command that lists the table whose name is put behind it
	restore string
}

// name is what an operator types: iptables-nft, ip6tables-legacy.
func (f flavour) name() string { return f.family.Tool + "-" + f.engine }

// program is the command as it is installed, which may lack the engine's name.
func (f flavour) program() string { return strings.TrimSuffix(f.restore, "-restore") }

// flavours lists what is installed. A host or image without any iptables is fine, and gives an empty list.
func (h host) flavours(ctx context.Context) []flavour {
	var out []flavour
	for _, fam := range families() {
		for _, engine := range []string{engineNFT, engineLegacy} {
			if _, err := h.Find(fam.Tool + "-" + engine + "-restore"); err == nil {
				out = append(out, newFlavour(fam, engine, fam.Tool+"-"+engine))
			}
		}
		if slices.ContainsFunc(out, func(f flavour) bool { return f.family == fam }) {
			continue
		}
		// Distributions with one engine only may not have the long names: the version tells which engine it is.
		if text, err := h.Run(ctx, "", fam.Tool, "--version"); err == nil {
			engine := engineLegacy
			if strings.Contains(text, "nf_tables") {
				engine = engineNFT
			}
			out = append(out, newFlavour(fam, engine, fam.Tool))
		}
	}
	return out
}

// newFlavour knows how to list. iptables-nft-save reads every table to print one (0.3 s beside 20,000 rules of
// kube-proxy's), iptables-nft -S does not; iptables-legacy takes the lock for -S, and iptables-legacy-save does not.
func newFlavour(fam family, engine, program string) flavour {
	list := []string{program, "-S", "-t"}
	if engine == engineLegacy {
		list = []string{program + "-save", "-t"}
	}
	return flavour{fam, engine, list, program + "-restore"}
}

// inUse tells whether the kernel has the table of that engine at all. It must be asked first: iptables-legacy loads the
// table's module by merely looking at it.
func (h host) inUse(fam family, engine, table string, tables map[string]bool) bool {
	if engine == engineNFT {
		return tables[fam.Proto+" "+table]
	}
	return slices.Contains(h.legacyTables(fam), table)
}

// legacyTables lists the tables that iptables-legacy has in the namespace.
func (h host) legacyTables(fam family) []string {
	var names []byte
	_ = h.Inside(func() (err error) {
		// thread-self, since /proc/net is the main thread's, whichever thread asks; absent where the module is not loaded.
		names, err = os.ReadFile("/proc/thread-self/net/" + fam.Names)
		return err
	})
	return strings.Fields(string(names))
}

// read lists one table.
func (h host) read(ctx context.Context, f flavour, table string) (xtable, error) {
	text, err := h.Run(ctx, "", append(slices.Clone(f.list), table)...)
	if err != nil && strings.Contains(err.Error(), "is incompatible, use 'nft' tool") {
		return xtable{foreign: true}, nil // a base chain that iptables would have made otherwise
	}
	if err != nil {
		return xtable{}, fmt.Errorf("list %s table %s: %w", f.name(), table, err)
	}
	return parseXtable(text), nil
}

// commit carries out commands on one table: all or none.
func (h host) commit(ctx context.Context, f flavour, table string, commands []string) error {
	if _, err := h.Run(ctx, restoreInput(table, commands), f.restore, "-w", lockWait, "--noflush"); err != nil {
		return fmt.Errorf("change %s table %s: %w", f.name(), table, err)
	}
	return nil
}
