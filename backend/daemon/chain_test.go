package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestC08ReservationsAreCollectedWhereTheTemplateKeepsThem(t *testing.T) {
	dir := t.TempDir()
	p := Paths{NetConf: filepath.Join(dir, "net-conf.json"), CNIData: filepath.Join(dir, "cni")}
	elsewhere := filepath.Join(dir, "elsewhere")
	if err := os.Mkdir(elsewhere, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ ipam, want, says string }{
		{`{}`, dir + "/cni/networks", ""},
		{`{"type":"host-local","routes":[]}`, dir + "/cni/networks", ""},
		{`{"dataDir":"/var/lib/cni/networks"}`, dir + "/cni/networks", ""},
		{`{"dataDir":"/var/lib/cni/other/"}`, dir + "/cni/other", ""},
		{`{"dataDir":"` + elsewhere + `"}`, elsewhere, ""},
		{`{"dataDir":"/var/lib/cni/../nowhere"}`, dir + "/cni/networks", "cni-conf.json keeps reservations in /var/lib/nowhere, which is not here"},
		{`{"dataDir":"/no/such/place"}`, dir + "/cni/networks", "mount it into the agent's container, or choose a dataDir in /var/lib/cni/"},
		{`{"type":"whereabouts"}`, dir + "/cni/networks", "addresses are managed by whereabouts"},
		{`7`, dir + "/cni/networks", ""}, // the plugin will refuse it
	} {
		text := `{"name":"cbr0","plugins":[{"type":"tuning","ipam":{"type":"dhcp"}},{"type":"flannel","ipam":` + c.ipam + `}]}`
		if err := os.WriteFile(p.CNITemplate(), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := p.reservations()
		if got != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %s, %v; want %s, %q", c.ipam, got, err, c.want, c.says)
		}
	}
	if err := os.Remove(p.CNITemplate()); err != nil {
		t.Fatal(err)
	}
	if got, err := p.reservations(); got != dir+"/cni/networks" || err != nil {
		t.Errorf("without a template: %s, %v", got, err)
	}
}
