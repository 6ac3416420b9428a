package install

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
)

const builtinRendered = `{
  "cniVersion": "1.0.0",
  "cniVersions": [
    "0.3.1",
    "0.4.0",
    "1.0.0",
    "1.1.0"
  ],
  "name": "cbr0",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {
        "hairpinMode": true,
        "isDefaultGateway": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    },
    {
      "type": "bandwidth",
      "capabilities": {
        "bandwidth": true
      }
    }
  ]
}
`

func TestTheBuiltinConflistListsTheVersionsThatAllPluginsSpeak(t *testing.T) {
	got, err := Conflist(context.Background(), nil, chain(t).dir)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(builtinRendered, string(got)); d != "" {
		t.Errorf("conflist (-want +got):\n%s", d)
	}
	list, err := libcni.NetworkConfFromBytes(got)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff("1.1.0 cbr0 3", strings.Join([]string{list.CNIVersion, list.Name, string(rune('0' + len(list.Plugins)))}, " ")); d != "" {
		t.Errorf("what a runtime makes of it (-want +got):\n%s", d)
	}
}

func TestTheConflistHoldsBackWhatOnePluginDoesNotSpeak(t *testing.T) {
	bin := chain(t)
	bin.put("bandwidth", program{"v1.1.1", []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0"}})
	got, err := Conflist(context.Background(), nil, bin.dir)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Replace(builtinRendered, ",\n    \"1.1.0\"", "", 1), string(got)); d != "" {
		t.Errorf("conflist (-want +got):\n%s", d)
	}
}

func TestATemplateKeepsWhatItsAuthorWrote(t *testing.T) {
	bin := chain(t)
	bin.put("macvlan", program{"v1.10.0", everyVersion})
	bin.put("dhcp", program{"v1.10.0", everyVersion})
	const template = `{"name":"weft-0","cniVersion":"0.3.1","cniVersions":["0.3.1","0.4.0","2.0.0"],"disableCheck":true,
		"plugins":[{"type":"flannel","delegate":{"type":"macvlan"},"ipam":{"type":"dhcp"},"sysctl":"a<b & c"}]}`
	const want = `{
  "cniVersion": "0.3.1",
  "cniVersions": [
    "0.3.1",
    "0.4.0"
  ],
  "disableCheck": true,
  "name": "weft-0",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {
        "type": "macvlan"
      },
      "ipam": {
        "type": "dhcp"
      },
      "sysctl": "a<b & c"
    }
  ]
}
`
	got, err := Conflist(context.Background(), []byte(template), bin.dir)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("conflist (-want +got):\n%s", d)
	}
}

func TestABadTemplateIsRefusedWithAllItsProblems(t *testing.T) {
	bin := chain(t)
	hands := func(delegate string) string {
		return `{"name":"a","plugins":[{"type":"flannel","delegate":` + delegate + `}]}`
	}
	for template, want := range map[string][]string{
		" \n":                                         {"cni-conf.json: it is empty: take the key out of the ConfigMap"},
		hands(`1`):                                    {`"plugins"[0]: "delegate": want an object, like {`},
		hands(`{"name":"x","ipam":{}}`):               {`"delegate" has "name": "x": leave it out`, `"delegate" has "ipam": {}: leave it out`},
		hands(`{"type":""}`):                          {`"delegate" has "type": "": want the name of a CNI plugin`},
		hands(`{"bridge":"a/b"}`):                     {`"delegate" has "bridge": "a/b": want the name of an interface, of at most 15 letters`},
		hands(`{"bridge":"cni0123456789012"}`):        {`at most 15 letters`},
		hands(`{"mtu":"1400"}`):                       {`"delegate" has "mtu": "1400": want a number`},
		hands(`{"hairpinMode":"true","isGateway":1}`): {`"hairpinMode": "true": want true or false, without quotes`, `"isGateway": 1: want true or false`},
		`{`:                        {"parse cni-conf.json"},
		`{"name":"cbr0"}`:          {`"plugins" is missing`},
		`{"plugins":[]}`:           {`"name" is missing`, `"plugins" is missing`},
		`{"name":"a","plugins":1}`: {`"plugins" is missing or no list`},
		`{"name":"../x","plugins":[{"type":"/bin/sh"},{}]}`:                                {`"name": "../x"`, `not a path`, `"plugins"[1] has no "type"`, `none of "type": "flannel"`},
		`{"name":"a","cniVersion":1,"plugins":[{"type":"flannel"}]}`:                       {`"cniVersion"`},
		`{"name":"a","cniVersion":"9.9.9","plugins":[{"type":"flannel"}]}`:                 {`"cniVersion": "9.9.9": the plugins of the chain have only these in common: 0.1.0`},
		`{"name":"a","cniVersion":"1.0.0","cniVersions":1,"plugins":[{"type":"flannel"}]}`: {`"cniVersions"`},
	} {
		_, err := Conflist(context.Background(), []byte(template), bin.dir)
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: error %v; want %q", template, err, w)
			}
		}
	}
}

func TestAByteOrderMarkAndADelegateOfAnotherKindAreTaken(t *testing.T) {
	bin := chain(t)
	bin.put("macvlan", program{"v1.10.0", everyVersion})
	for _, template := range []string{"\xef\xbb\xbf" + Builtin, `{"name":"a","plugins":[{"type":"flannel","delegate":{"type":"macvlan","mtu":"auto","bridge":7}}]}`,
		`{"name":"a","plugins":[{"type":"flannel","delegate":null}]}`} {
		if _, err := Conflist(context.Background(), []byte(template), bin.dir); err != nil {
			t.Errorf("%.40q: %v", template, err)
		}
	}
}

// C-12: a delegate that is not on the host. All missing ones are named, delegates of delegates included.
func TestC12MissingPluginsAreNamedAndNothingIsPublished(t *testing.T) {
	bin := chain(t)
	for _, name := range []string{"bridge", "host-local", "bandwidth"} {
		if err := os.Remove(filepath.Join(bin.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Conflist(context.Background(), nil, bin.dir)
	want := "CNI plugin bridge is not in " + bin.dir + "\nCNI plugin host-local is not in " + bin.dir + "\nCNI plugin bandwidth is not in " + bin.dir
	if err == nil || err.Error() != want {
		t.Errorf("error (-want +got):\n%s", cmp.Diff(want, err.Error()))
	}
	bin.write("bridge", "#!/bin/sh\necho no json\n", 0o755)
	bin.write("host-local", "#!/bin/sh\nexit 3\n", 0o755)
	_, err = Conflist(context.Background(), nil, bin.dir)
	for _, w := range []string{"ask " + filepath.Join(bin.dir, "bridge") + " for its CNI versions: invalid character", "exit status 3"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error %v; want %q", err, w)
		}
	}
}

// C-12: a distribution's plugin that is linked with libraries of the host cannot be started by us, and is none that is missing.
func TestC12APluginThatOnlyTheHostCanStartHoldsNoConflistBack(t *testing.T) {
	bin := chain(t)
	bin.write("bridge", "#!/no/such/loader\n", 0o755)
	got, err := Conflist(context.Background(), nil, bin.dir)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(builtinRendered, "\"1.0.0\",\n    \"1.1.0\"", "\"1.0.0\"", 1)
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("conflist (-want +got):\n%s", d)
	}
	for text, cure := range map[string]string{
		"#!/bin/sh\n":     "permission denied (chmod 755 " + filepath.Join(bin.dir, "bridge") + "; or the file system of " + bin.dir + " is mounted noexec)",
		"\x7fELF no such": "exec format error (it is built for another machine, or cut short: install it anew)",
	} {
		mode := fs.FileMode(0o755)
		if strings.HasPrefix(text, "#!") {
			mode = 0o644
		}
		if err := os.Remove(filepath.Join(bin.dir, "bridge")); err != nil {
			t.Fatal(err)
		}
		bin.write("bridge", text, mode)
		if _, err := Conflist(context.Background(), nil, bin.dir); err == nil || !strings.Contains(err.Error(), cure) {
			t.Errorf("%q: %v, want %q", text, err, cure)
		}
	}
}

// C-16: another configuration sorts before ours, so the runtime uses that one.
func TestC16ConfigurationsBeforeOursAreNamed(t *testing.T) {
	s := newShelf(t)
	for name, text := range map[string]string{
		"00-bridge.conf":              `{"cniVersion":"0.3.1","name":"b","type":"bridge"}`,
		"05-broken.conflist":          `{"name":`,
		"06-empty.conf":               `{}`,
		"07-readme.txt":               `{"type":"bridge"}`,
		"08-multus.conf":              `{"name":"m","type":"multus","delegates":[{"plugins":[{"type":"flannel"}]}]}`,
		"09-multus.conf":              `{"name":"m","type":"multus","clusterNetwork":"/etc/cni/net.d/10-flannel.conflist"}`,
		"09-multus-by-name.conf":      `{"name":"m","type":"multus","clusterNetwork":"cbr0"}`,
		"09-multus-other.conf":        `{"name":"m","type":"multus","clusterNetwork":"calico"}`,
		"10-containerd-net.conflist":  `{"name":"c","plugins":[{"type":"bridge"}]}`,
		ConflistName:                  Builtin,
		"20-other.conflist":           `{"name":"o","plugins":[{"type":"bridge"}]}`,
		"10-flannel.conflist.disable": `{"type":"bridge"}`,
	} {
		s.write(name, text, 0o644)
	}
	got, err := Foreign(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"00-bridge.conf", "09-multus-other.conf", "10-containerd-net.conflist"}, got); d != "" {
		t.Errorf("foreign (-want +got):\n%s", d)
	}
	if got, err := Foreign(filepath.Join(s.dir, "none")); got != nil || err != nil {
		t.Errorf("a directory that is not there: %v, %v", got, err)
	}
	if _, err := Foreign(filepath.Join(s.dir, ConflistName)); err == nil {
		t.Error("a file instead of a directory is no error")
	}
}

func TestC16FilesThatShadowOursWithoutBeingAnotherNetworkAreTold(t *testing.T) {
	s := newShelf(t)
	for name, text := range map[string]string{
		"00-multus.conf":       `{"name":"m","type":"multus","clusterNetwork":"/etc/cni/net.d/10-flannel.conflist"}`,
		"05-broken.conflist":   `{"name":`,
		"06-empty.conf":        `{"name":"x"}`,
		"07-notes.txt":         `{`,
		"08-istio.conflist":    `{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"portmap"},{"type":"istio-cni"}]}`,
		"09-flannel.conflist":  `{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"tuning"}]}`,
		"10-flannel.conf":      `{"name":"cbr0","type":"flannel","delegate":{"isDefaultGateway":true}}`,
		ConflistName:           Builtin,
		"11-flannel.conf":      `{"name":"cbr0","type":"flannel"}`,
		"99-broken.conflist":   `{`,
		"10-flannel.conf.save": `{"name":"cbr0","type":"flannel"}`,
	} {
		s.write(name, text, 0o644)
	}
	// A link to somewhere else of the host leads nowhere in the agent's container.
	for _, name := range []string{"04-link.conf", "20-link.conf"} {
		if err := os.Symlink("/no/such/file", filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Odd(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"04-link.conf cannot be read here: open " + filepath.Join(s.dir, "04-link.conf") + ": no such file or directory: a runtime may take it before " +
			"10-flannel.conflist, or stop at it (containerd does) and have no network at all; mend or remove it",
		"05-broken.conflist is no CNI configuration: a runtime may stop at it (containerd does) and have no network at all; mend or remove it",
		"06-empty.conf is no CNI configuration: a runtime may stop at it (containerd does) and have no network at all; mend or remove it",
		"09-flannel.conflist leads to this network and has no portmap, so that hostPorts are not served: the runtime takes it and not 10-flannel.conflist; remove it",
		"10-flannel.conf leads to this network and has no portmap, so that hostPorts are not served: the runtime takes it and not 10-flannel.conflist; remove it",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("odd (-want +got):\n%s", d)
	}
	if got, err := Odd(filepath.Join(s.dir, "none")); got != nil || err != nil {
		t.Errorf("a directory that is not there: %v, %v", got, err)
	}
}

func TestAConflistOfAnotherBootIsRemovedAndNoOther(t *testing.T) {
	for _, c := range []struct {
		name, conflist string
		subnetEnv      bool
		removed        bool
	}{
		{"this boot", Builtin, true, false},
		{"another boot", Builtin, false, true},
		{"nothing there", "", false, false},
		{"broken by a power cut", `{"na`, false, true},
		{"somebody else's under our name", `{"name":"o","plugins":[{"type":"bridge"}]}`, false, false},
	} {
		s := newShelf(t)
		if c.conflist != "" {
			s.write(ConflistName, c.conflist, 0o644)
		}
		if c.subnetEnv {
			s.write("subnet.env", "FLANNEL_MTU=1450\n", 0o644)
		}
		removed, err := RemoveStale(s.dir, filepath.Join(s.dir, "subnet.env"))
		if err != nil || removed != c.removed {
			t.Errorf("%s: removed %t, error %v", c.name, removed, err)
		}
		_, err = os.Stat(filepath.Join(s.dir, ConflistName))
		if there := err == nil; there != (c.conflist != "" && !c.removed) {
			t.Errorf("%s: the conflist is there: %t", c.name, there)
		}
	}
}
