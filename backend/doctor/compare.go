package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// Finding is one difference that matters.
type Finding struct {
	What string // the setting
	Text string // what differs, with both values
	Cure string
	Stop bool // settle it before the manifest is applied: pods would lose the network
}

// keepTheirs is the cure for whatever net-conf.json says differently.
const keepTheirs = "put the net-conf.json that is there into our ConfigMap before you apply the manifest"

// Compare names every difference between the running installation and ours that a pod or an operator would notice.
func Compare(theirs, ours Install) []Finding {
	var out []Finding
	out = append(out, compareNetConf(theirs, ours)...)
	out = append(out, compareFlags(theirs, ours)...)
	out = append(out, comparePlaces(theirs, ours)...)
	out = append(out, comparePlugins(theirs, ours)...)
	return out
}

func compareNetConf(theirs, ours Install) []Finding {
	conf, warnings, err := subnet.ParseNetConf([]byte(theirs.NetConf))
	if err != nil {
		return []Finding{{"net-conf.json", "weft refuses it: " + strings.ReplaceAll(err.Error(), "\n", "; "), "settle that first", true}}
	}
	want, _, err := subnet.ParseNetConf([]byte(ours.NetConf))
	if err != nil {
		return []Finding{{"net-conf.json", "our own does not parse: " + err.Error(), "restore the one of the manifest", true}}
	}
	var out []Finding
	differs := func(key string, a, b any, stop bool) {
		if a != b {
			out = append(out, Finding{key, fmt.Sprintf("%v there, %v in our manifest", a, b), keepTheirs, stop})
		}
	}
	for _, f := range subnet.Families() {
		key := [2]string{"Network", "IPv6Network"}[f]
		differs("net-conf.json "+key, conf.Networks[f], want.Networks[f], true)
		differs("net-conf.json Enable"+f.String(), conf.Enabled[f], want.Enabled[f], true)
	}
	b, w := conf.Backend, want.Backend
	differs("net-conf.json Backend.Type", b.Type, w.Type, true)
	differs("net-conf.json Backend.VNI", b.VNI, w.VNI, true)
	differs("net-conf.json Backend.MTU", b.MTU, w.MTU, false)
	differs("net-conf.json Backend.GBP", b.GBP, w.GBP, true)
	differs("net-conf.json Backend.Learning", b.Learning, w.Learning, false)
	differs("net-conf.json Backend.DirectRouting", b.DirectRouting, w.DirectRouting, false)
	if b.Type == w.Type {
		differs("net-conf.json Backend", b.WireGuard, w.WireGuard, true) // of the type wireguard; a PSK is hidden
	}
	// An absent Port is no difference: ours then takes the port of the device that is there.
	if b.Port != 0 && w.Port != b.Port {
		differs("net-conf.json Backend.Port", b.Port, w.Port, false)
	}
	for _, text := range warnings {
		out = append(out, Finding{What: "net-conf.json", Text: fmt.Sprint(text), Cure: "mend or drop the key"})
	}
	return out
}

// compareFlags names what the running daemon is told and ours is not. Flags and FLANNELD_ variables are the same thing.
func compareFlags(theirs, ours Install) []Finding {
	there, here := settings(theirs), settings(ours)
	var out []Finding
	isEtcd := func(flag string) bool { return strings.HasPrefix(flag, "--etcd-") }
	if slices.ContainsFunc(there, isEtcd) && !slices.Contains(there, "--kube-subnet-mgr") {
		out = append(out, Finding{"flag --etcd-endpoints", "that flannel keeps the nodes' ranges in etcd, and weft takes their podCIDRs: pods that exist would lose the network",
			"give the Nodes podCIDRs and change flannel to --kube-subnet-mgr first, node by node", true})
	}
	for _, a := range there {
		if !slices.Contains(here, a) && !strings.HasPrefix(a, "--v=") && !isEtcd(a) {
			out = append(out, Finding{"flag " + a, "given there, not in our manifest", "add it to the DaemonSet's args", strings.HasPrefix(a, "--iface") || strings.HasPrefix(a, "--kube-annotation-prefix")})
		}
	}
	// The one flag of our manifest that changes what happens to packets.
	if masq := "--ip-masq"; slices.Contains(here, masq) && !slices.Contains(there, masq) {
		out = append(out, Finding{"flag " + masq, "in our manifest, not given there: pods would begin to leave the network under their node's address", "take it out of our DaemonSet's args", true})
	}
	return out
}

// settings lists flags and variables in one spelling; a flag wins over its variable.
func settings(in Install) []string {
	out := words(in.Args)
	for _, k := range slices.Sorted(maps.Keys(in.Env)) {
		flag := "--" + strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(k, "FLANNELD_"), "_", "-"))
		given := slices.ContainsFunc(out, func(w string) bool { return w == flag || strings.HasPrefix(w, flag+"=") })
		if !given && in.Env[k] != "" {
			out = append(out, strings.TrimSuffix(flag+"="+in.Env[k], "=true"))
		}
	}
	return out
}

// words brings flags to one spelling: --name or --name=value.
func words(args []string) []string {
	var out []string
	for _, a := range args {
		switch {
		case strings.HasPrefix(a, "-"):
			name := strings.TrimLeft(a, "-")
			name = strings.TrimSuffix(name, "=true")
			out = append(out, "--"+name)
		case len(out) > 0:
			out[len(out)-1] += "=" + a
		}
	}
	return out
}

func comparePlaces(theirs, ours Install) []Finding {
	var out []Finding
	if theirs.Namespace != ours.Namespace || theirs.DaemonSet != ours.DaemonSet {
		out = append(out, Finding{
			"DaemonSet", fmt.Sprintf("%s/%s there, %s/%s in our manifest: both would run, ours waits for the node's lock only against another weft", theirs.Namespace, theirs.DaemonSet, ours.Namespace, ours.DaemonSet),
			fmt.Sprintf("kubectl -n %s delete daemonset %s, then apply the manifest at once: traffic goes on meanwhile", theirs.Namespace, theirs.DaemonSet), true,
		})
	}
	for _, o := range theirs.Others {
		out = append(out, Finding{"DaemonSet", "a second one runs: " + o, "delete it", true})
	}
	for _, image := range theirs.Images {
		if strings.Contains(image, "calico") {
			out = append(out, Finding{"container " + image, "this is Canal: Calico connects the pods there and flannel the nodes, and pods that exist would lose the network", "drain the nodes one by one and remove Canal with its own means, or stay with it", true})
		}
		if strings.Contains(image, "kube-network-policies") {
			out = append(out, Finding{"container " + image, "enforces NetworkPolicy there; here weft does, from the moment that it is ready", "nothing, unless you want to go on with it: give weft --network-policy=off then, and keep it as a DaemonSet of its own", false})
		}
	}
	return out
}

func comparePlugins(theirs, ours Install) []Finding {
	var out []Finding
	if theirs.CNIName != "" && theirs.CNIName != ours.CNIName {
		out = append(out, Finding{"cni-conf.json name", fmt.Sprintf("%q there, %q in our manifest: host-local keeps reservations under it, new pods could get addresses of living ones", theirs.CNIName, ours.CNIName), "keep their name in our cni-conf.json", true})
	}
	for _, p := range theirs.Plugins {
		if !slices.Contains(ours.Plugins, p) {
			out = append(out, Finding{"cni-conf.json plugin " + p, "in their chain, not in ours", "add it to our cni-conf.json", false})
		}
	}
	return out
}
