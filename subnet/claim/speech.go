package claim

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/weft-cni/weft/subnet"
)

// Speech is what a node says about the backends by which it is reached, apart from its addresses: what the annotations
// backend-type, backend-data, backend-v6-data, backend-port and backend-also hold together.
type Speech struct {
	Type    string       // what it is configured to speak
	Also    subnet.Kinds // what it speaks besides
	VNI     uint32       // of VXLAN
	Port    uint16       // of VXLAN; 0 means that it does not say
	MACs    [2]subnet.MAC
	Key     subnet.Key // of WireGuard
	WGPorts [2]uint16  // of WireGuard; 0 means no tunnels of that family
}

// noData is flannel's text for backends that have none.
const noData = "null"

// Annotations is what a Node has to carry so that its peers read this speech and these addresses: keys without the prefix,
// and "" for a key that must not be there; of backend-type "" is a value. A family without an address is left out.
func (s Speech) Annotations(public [2]netip.Addr) map[string]string {
	on := [2]bool{public[subnet.IPv4].IsValid(), public[subnet.IPv6].IsValid()}
	want := map[string]string{KeyManaged: "true", KeyBackendType: s.Type, KeyBackendPort: "", KeyBackendAlso: s.also(on)}
	if s.Type == subnet.Alloc {
		want[KeyBackendType] = "" // as flannel says it
	}
	if s.Type == subnet.VXLAN && s.Port != 0 {
		want[KeyBackendPort] = strconv.Itoa(int(s.Port))
	}
	for _, f := range subnet.Families() {
		keys := KeysOf(f)
		want[keys.PublicIP], want[keys.BackendData] = "", ""
		if on[f] {
			want[keys.PublicIP], want[keys.BackendData] = public[f].String(), s.data(s.Type, f)
		}
	}
	return want
}

// Removes reports whether a wanted value means that the key must not be there.
func (p Prefix) Removes(key, value string) bool { return value == "" && key != p.Key(KeyBackendType) }

// data is the value of backend-data for a kind, byte for byte flannel's: flannel finds its MAC in it by splitting the string.
func (s Speech) data(kind string, f subnet.Family) string {
	switch {
	case kind == subnet.VXLAN && !s.MACs[f].IsZero():
		return fmt.Sprintf(`{"VNI":%d,"VtepMAC":"%s"}`, s.VNI, s.MACs[f])
	case kind == subnet.WireGuard && !s.Key.IsZero() && s.WGPorts[f] != 0:
		return fmt.Sprintf(`{"PublicKey":"%s","Port":%d}`, s.Key, s.WGPorts[f])
	}
	return noData
}

// ear puts a speech together from what is heard.
type ear struct {
	Speech
	ports [2]uint16    // where a node listens by WireGuard that does not say
	heard subnet.Kinds // in one family at least
}

// hear takes in the data of one kind and family. What both families say of one thing must be one.
func (e *ear) hear(kind string, f subnet.Family, data string) error {
	again := e.heard.Has(kind)
	switch kind {
	case subnet.VXLAN:
		vni, mac, err := vxlanData(data)
		if err == nil && again && vni != e.VNI {
			err = fmt.Errorf("VNI is %d here and %d in the other family", vni, e.VNI)
		}
		if err != nil {
			return err
		}
		e.VNI, e.MACs[f] = vni, mac
	case subnet.WireGuard:
		key, port, err := wireGuardData(data)
		if err == nil && again && key != e.Key {
			err = errors.New("PublicKey is not that of the other family")
		}
		if err != nil {
			return err
		}
		e.Key, e.WGPorts[f] = key, cmp.Or(port, e.ports[f])
	}
	e.heard |= subnet.KindsOf(kind)
	return nil
}

// vxlanData reads backend-data as JSON: order, blanks and further keys do not matter.
func vxlanData(s string) (uint32, subnet.MAC, error) {
	if s == "" {
		return 0, subnet.MAC{}, errors.New("is missing")
	}
	var data struct {
		VNI     *uint32
		VtepMAC string
	}
	if err := json.Unmarshal([]byte(s), &data); err != nil {
		return 0, subnet.MAC{}, fmt.Errorf(`%.80q is not like {"VNI":1,"VtepMAC":"0a:1b:2c:3d:4e:5f"}`, s)
	}
	if data.VNI == nil || *data.VNI >= 1<<24 {
		return 0, subnet.MAC{}, fmt.Errorf("%.80q has no VNI from 0 to 16777215", s)
	}
	mac, err := subnet.ParseMAC(Limit(data.VtepMAC, 60))
	return *data.VNI, mac, err
}

// wireGuardData reads WireGuard's likewise. Old flannels name no port.
func wireGuardData(s string) (subnet.Key, uint16, error) {
	if s == "" {
		return subnet.Key{}, 0, errors.New("is missing")
	}
	var data struct {
		PublicKey string
		Port      *uint16
	}
	if err := json.Unmarshal([]byte(s), &data); err != nil {
		return subnet.Key{}, 0, fmt.Errorf(`%.80q is not like {"PublicKey":"...","Port":51820}`, s)
	}
	key, err := subnet.ParseKey(Limit(data.PublicKey, 60))
	switch {
	case err != nil:
		return subnet.Key{}, 0, err
	case key.IsZero():
		return subnet.Key{}, 0, errors.New("PublicKey is all zero")
	case data.Port == nil:
		return key, 0, nil
	case *data.Port == 0:
		return subnet.Key{}, 0, errors.New("the port 0 is not one from 1 to 65535")
	}
	return key, *data.Port, nil
}
