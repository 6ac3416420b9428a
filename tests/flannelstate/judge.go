package flannelstate

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Judge lists what a flannel that starts on this node would not take as it is, or would leave lying about for ever: empty
// is a node that flannel could have left itself.
func (n Node) Judge(h Host) ([]string, error) {
	var out []string
	parts := []func(Host) ([]string, error){n.judgeRules}
	for _, half := range n.halves() {
		parts = append(parts, half.judgeDevice, half.judgeRoutes)
	}
	for _, part := range parts {
		found, err := part(h)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	for _, part := range []func() []string{n.judgeEnv, n.judgeConflist, n.judgeRecords, n.judgeStrange} {
		out = append(out, part()...)
	}
	return out, nil
}

func (n Node) judgeDevice(h Host) ([]string, error) {
	have, there, err := n.look(h)
	if err != nil {
		return nil, err
	}
	switch misfit := n.misfit(have); {
	case !there:
		return []string{"there is no device " + n.Device()}, nil
	case misfit != "":
		return []string{"the device is made anew: " + misfit}, nil
	case have.Address != n.MAC:
		return []string{"the device has the MAC " + have.Address + ", the peers know " + n.MAC}, nil
	}
	return nil, nil
}

// judgeRoutes: flannel replaces the routes to its peers, whoever wrote them, and knows of no others.
func (n Node) judgeRoutes(h Host) ([]string, error) {
	text, err := h.Input("", "ip", n.in().ip, "route", "show")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		metric := strings.Contains(line, " metric ") == (n.in().metric != "") && strings.Contains(line, n.in().metric)
		toPeer := strings.Contains(line, " dev "+n.Device()+" ") && strings.Contains(line, " onlink") && metric
		if strings.Contains(line, "proto 87") && !toPeer {
			out = append(out, "a route that flannel never removes: "+line)
		}
	}
	return out, nil
}

// judgeRules: masquerade has to go on until flannel has written its own rules, by rules that it recognises as its own.
func (n Node) judgeRules(h Host) ([]string, error) {
	text, err := RulesText(h)
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(text) {
		if strings.Contains(strings.ToLower(line), "weft") {
			out = append(out, "a rule that flannel does not know: "+strings.TrimSpace(line))
		}
	}
	for _, half := range n.halves() {
		w := half.in()
		marks := []string{
			`-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG`,
			"-A FLANNEL-POSTRTG -s " + half.Network.String() + " ! -d " + w.multicast,
		}
		if n.Rules == NFTables {
			marks = []string{"chain postrtg", w.nft + " saddr " + half.Network.String() + " " + w.nft + " daddr != " + w.multicast + " masquerade"}
		}
		for _, m := range marks {
			if !strings.Contains(text, m) {
				out = append(out, "pods' packets leave untranslated until flannel has started: no "+m)
			}
		}
	}
	return out, nil
}

// judgeEnv reads subnet.env as strictly as flannel's plugin does.
func (n Node) judgeEnv() []string {
	data, err := os.ReadFile(n.Path(envFile))
	if err != nil {
		return []string{"subnet.env: " + err.Error()}
	}
	var out []string
	want := map[string]string{"FLANNEL_IPMASQ": "true", "FLANNEL_MTU": ""}
	for _, half := range n.halves() {
		want["FLANNEL_"+half.in().env+"NETWORK"] = half.Network.String()
		want["FLANNEL_"+half.in().env+"SUBNET"] = half.bridge().String()
	}
	for line := range strings.Lines(string(data)) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		w, known := want[key]
		_, mtuErr := strconv.ParseUint(value, 10, 32)
		if !ok || known && (w != "" && value != w || w == "" && mtuErr != nil) {
			out = append(out, fmt.Sprintf("subnet.env: %q", line))
		}
		delete(want, key)
	}
	for key := range want {
		out = append(out, "subnet.env is missing "+key)
	}
	return out
}

// supported are the protocol versions that flannel's plugin reports.
func supported() []string {
	return []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
}

func (n Node) judgeConflist() []string {
	var list struct {
		Name, CNIVersion string
		Plugins          []struct {
			Type     string
			Delegate map[string]any
		}
	}
	data, err := os.ReadFile(n.Path(conflistFile))
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	switch {
	case err != nil:
		return []string{"conflist: " + err.Error()}
	case list.Name != "cbr0" || len(list.Plugins) == 0 || list.Plugins[0].Type != "flannel":
		return []string{"conflist: not flannel's chain of cbr0: " + string(data)}
	case !slices.Contains(supported(), list.CNIVersion):
		return []string{"conflist: version " + list.CNIVersion}
	case list.Plugins[0].Delegate["name"] != nil || list.Plugins[0].Delegate["ipam"] != nil:
		return []string{"conflist: the delegate has a name or an ipam"}
	}
	return nil
}

// judgeRecords: a DEL works from what was kept of the ADD, which has to be a delegate's configuration under the bare id.
func (n Node) judgeRecords() []string {
	entries, err := os.ReadDir(n.Path(recordsDir))
	if err != nil && !os.IsNotExist(err) {
		return []string{"records: " + err.Error()}
	}
	var out []string
	for _, e := range entries {
		if e.Name() == ".lock" { // no container's id begins like this, and flannel's plugin lists nothing
			continue
		}
		var record struct {
			Type string
			IPAM struct{ Type string }
		}
		data, err := os.ReadFile(filepath.Join(n.Path(recordsDir), e.Name()))
		if err != nil || json.Unmarshal(data, &record) != nil || record.Type == "" || record.IPAM.Type == "" {
			out = append(out, "record "+e.Name()+": "+string(data))
		}
	}
	return out
}

// judgeStrange finds files that flannel would never touch again.
func (n Node) judgeStrange() []string {
	var out []string
	for _, pattern := range []string{"run/flannel/weft*", "var/lib/weft*", "var/lib/weft/*", "etc/cni/net.d/*weft*", "var/lib/cni/*weft*"} {
		names, _ := filepath.Glob(n.Path(pattern)) // fails for a bad pattern only
		for _, name := range names {
			if info, err := os.Stat(name); err == nil && !info.IsDir() {
				out = append(out, "a file that flannel does not know: "+name)
			}
		}
	}
	return out
}
