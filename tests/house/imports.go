package house

import (
	"go/ast"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	module    = "github.com/weft-cni/weft"
	netlink   = "github.com/vishvananda/netlink"
	clientGo  = "k8s.io/client-go"
	knftables = "sigs.k8s.io/knftables"
)

// layer says how high a package of the product stands. Imports point downwards only.
func layer(dir string) int {
	switch {
	case dir == ".":
		return 7
	case within(dir, "backend/cli"):
		return 6
	case within(dir, "backend/daemon"), within(dir, "backend/doctor"), within(dir, "backend/policy/ask"):
		return 5
	case within(dir, "backend/policy/watch"), dir == "backend/mesh": // the one asks through subnet/kube, the other is above the planners
		return 4
	case within(dir, "backend/kernel"), within(dir, "backend/netfilter"):
		return 2
	case dir == "subnet", dir == "subnet/nl":
		return 0
	case dir == "backend", within(dir, "subnet/ipam"), within(dir, "subnet/attach"), within(dir, "subnet/claim"), within(dir, "subnet/wire"):
		return 1
	default: // subnet/kube and the planners under backend
		return 3
	}
}

// homes names the only places that may import some modules.
var homes = map[string][]string{
	netlink:   {"backend/kernel", "tests"},
	clientGo:  {"subnet/kube", "backend/policy/watch", "backend/daemon", "backend/doctor", "tests"},
	knftables: {"backend/traffic", "backend/policy", "backend/daemon", "backend/doctor", "tests"},
}

// pure lists the packages that reach neither client-go nor netlink, not even through others.
var pure = []string{"subnet", "subnet/ipam", "subnet/attach", "subnet/claim", "subnet/nl", "subnet/wire", "cniplugin"}

// arrows checks the direct imports of the product's packages against the layers and homes.
func arrows(t Tree) []Finding {
	var out []Finding
	for _, f := range t.code() {
		for _, i := range f.AST.Imports {
			target, _ := strconv.Unquote(i.Path.Value)
			if text := refuse(f.Dir(), target); text != "" {
				out = append(out, t.at(i.Pos(), "%s", text))
			}
		}
	}
	return out
}

// refuse says why a package may not import another, or nothing.
func refuse(from, target string) string {
	for mod, places := range homes {
		if (target == mod || strings.HasPrefix(target, mod+"/")) && !slices.ContainsFunc(places, func(p string) bool { return within(from, p) }) {
			return from + " imports " + target + "; only " + strings.Join(places, ", ") + " may"
		}
	}
	to, ours := strings.CutPrefix(target, module+"/")
	if !ours || within(from, "tests") {
		return ""
	}
	switch {
	case within(to, "tests"):
		return "the product imports " + to
	case within(from, "cniplugin"):
		if !within(to, "cniplugin") && !slices.Contains(pure, to) {
			return "the shim imports " + to + "; only subnet, subnet/ipam, subnet/attach and subnet/nl"
		}
	case family(from, to):
		return ""
	case layer(to) >= layer(from):
		return from + " imports " + to + ", which stands beside or above it"
	}
	return ""
}

// family reports whether one package lies inside the other's folder, below the two roots that hold everything.
func family(a, b string) bool {
	roots := []string{"backend", "subnet", "."}
	return !slices.Contains(roots, a) && within(b, a) || !slices.Contains(roots, b) && within(a, b)
}

func within(dir, parent string) bool { return dir == parent || strings.HasPrefix(dir, parent+"/") }

// reaches finds what a pure package must not reach among the import paths that `go list -deps` printed for it.
func reaches(deps []string) []string {
	return slices.DeleteFunc(slices.Clone(deps), func(d string) bool {
		return !within(d, netlink) && !within(d, clientGo) && !within(d, "k8s.io/api") && !within(d, "k8s.io/apimachinery")
	})
}

var perThread = regexp.MustCompile(`^(Link|Addr|Route|Neigh|Rule|Qdisc|Class|Filter|Bridge|Xfrm|Conntrack|Vlan|Vdpa|Devlink|Genl|Ipset|Socket|Proto|Chain|GetNetNs|SetNetNs)[A-Z]?`)

// handlesOnly forbids netlink's functions at package level: they act in the namespace of whatever thread they meet, so that two
// nodes could not live in one process. Those that read a message touch no kernel.
func handlesOnly(t Tree) []Finding {
	var out []Finding
	for _, f := range t.golang() {
		name := localName(f.AST, netlink)
		if name == "" {
			continue
		}
		for _, call := range calls(f.AST) {
			fn, ok := strings.CutPrefix(typeName(call.Fun), name+".")
			if ok && perThread.MatchString(fn) && !strings.Contains(fn, "Subscribe") && !strings.HasSuffix(fn, "Deserialize") {
				out = append(out, t.at(call.Pos(), "netlink.%s works in the thread's namespace; use a Handle", fn))
			}
			if ok && strings.HasSuffix(fn, "Subscribe") {
				out = append(out, t.at(call.Pos(), "netlink.%s works in the thread's namespace; use %sWithOptions and a namespace", fn, fn))
			}
		}
	}
	return out
}

// localName tells what a file calls an import, "" when it does not import it.
func localName(f *ast.File, target string) string {
	for _, i := range f.Imports {
		if p, _ := strconv.Unquote(i.Path.Value); p != target {
			continue
		}
		if i.Name != nil {
			return i.Name.Name
		}
		return target[strings.LastIndex(target, "/")+1:]
	}
	return ""
}
