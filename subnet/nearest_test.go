package subnet

import "testing"

func TestNearestFindsASlipAndRefusesAStranger(t *testing.T) {
	words := []string{"EnableNFTables", "EnableIPv4", "Network", "Backend"}
	for in, want := range map[string]string{
		"EnableNFTable": "EnableNFTables", "network": "Network", "Bakcend": "Backend", "Colour": "", "x": "", "": "",
	} {
		if got := Nearest(in, words); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", in, got, want)
		}
	}
}
