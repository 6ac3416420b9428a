package kube_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/nstest"
)

// testStorm has a watch that brings five thousand changes as fast as they can be read.
func testStorm(w *world) {
	const nodes, rounds = 100, 50
	var began, ended atomic.Int64
	storm := func(rw http.ResponseWriter, r *http.Request) bool {
		rw.Header().Set("Content-Type", "application/json")
		out := json.NewEncoder(rw)
		began.Store(time.Now().UnixNano())
		for i := range nodes * rounds {
			n := &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}}
			n.Name, n.UID, n.ResourceVersion = fmt.Sprintf("s%03d", i%nodes), "u", r.URL.Query().Get("resourceVersion")
			n.Annotations = notes(annotations(fmt.Sprintf("192.168.%d.%d", 60+i/nodes, i%nodes), fmt.Sprintf("0a:00:00:00:02:%02x", i%nodes)))
			n.Spec.PodCIDRs = cidrs(fmt.Sprintf("10.244.%d.0/24", 100+i%nodes))
			if out.Encode(map[string]any{"type": "MODIFIED", "object": n}) != nil {
				return true
			}
		}
		_ = http.NewResponseController(rw).Flush() // the client may be gone
		ended.Store(time.Now().UnixNano())
		<-r.Context().Done()
		return true
	}
	w.api.Proxy.SetFault(apiserver.Each(
		apiserver.Only(apiserver.IsStreamedList, apiserver.Answer(http.StatusUnprocessableEntity)),
		apiserver.Only(apiserver.IsWatch, storm)))
	before := heap()
	s := w.source("n1")
	snapshots := 0
	first := families()[0]
	last := strings.TrimSuffix(in(first, fmt.Sprintf("192.168.%d.1", 60+rounds-1)), "1")
	deadline := time.After(3 * back)
	for done := false; !done; {
		select {
		case <-s.Changed():
			snapshots++
		case <-deadline:
			w.Fatal("the last change is not seen")
		}
		snap, _ := s.Snapshot()
		done = len(snap.Peers) == nodes
		for _, p := range snap.Peers {
			done = done && strings.HasPrefix(p.Endpoints[first].PublicIP.String(), last)
		}
	}
	w.Logf("%d changes, sent in %v, were %d snapshots; %.1f MB of heap more than before",
		nodes*rounds, time.Duration(ended.Load()-began.Load()), snapshots, float64(int64(heap())-int64(before))/1e6)
	if snapshots > nodes*rounds/10 {
		w.Errorf("%d snapshots for %d changes", snapshots, nodes*rounds)
	}
}

// testHostile has Nodes that say the worst that the API server lets through. Each is left out and named.
func testHostile(w *world) {
	w.node("n1", "10.244.1.0/24", nil)
	w.start("n1", announcement(ip1, mac1))
	w.carries("n1", back, annotations(ip1, mac1))
	w.node("b", "10.244.2.0/24", annotations(ip2, mac2))
	cases := []struct{ reason, cidr, key, value string }{
		{kube.ReasonBadBackendData, "", "backend-data", `{"VNI":1,"VtepMAC":"` + strings.Repeat("A", 100<<10) + `"}`},
		{kube.ReasonBadBackendData, "", "backend-data", strings.Repeat("[", 100<<10)},
		{kube.ReasonBadBackendData, "", "backend-data", `{"VNI":NaN,"VtepMAC":"0a:00:00:00:00:09"}`},
		{kube.ReasonBadBackendData, "", "backend-data", `{"VNI":16777216,"VtepMAC":"0a:00:00:00:00:09"}`},
		{kube.ReasonBadBackendData, "", "backend-data", "\x1b[2J\x00\r\n\u202e" + `{"VNI":1}`},
		{kube.ReasonBadBackendData, "", "backend-data", `{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}`},
		{kube.ReasonBadPublicIP, "", "public-ip", "127.0.0.1"},
		{kube.ReasonBadPublicIP, "", "public-ip", "224.0.0.1"},
		{kube.ReasonBadPublicIP, "", "public-ip", "255.255.255.255"},
		{kube.ReasonBadPublicIP, "", "public-ip", "0.0.0.0"},
		{kube.ReasonBadPublicIP, "", "public-ip", "fd00::2"},
		{kube.ReasonBadPublicIP, "", "public-ip", "::ffff:192.168.50.7"},
		{kube.ReasonBadPublicIP, "", "public-ip", "192.168.50.7; reboot\n\x07"},
		{kube.ReasonPublicIPConflict, "", "public-ip", ip1},
		{kube.ReasonBadBackendPort, "", "backend-port", "4789 "},
		{kube.ReasonBadBackendPort, "", "backend-port", "-1"},
		{kube.ReasonOtherBackend, "", "backend-type", "vxlan\x00"},
		{kube.ReasonOtherBackend, "", "backend-type", strings.Repeat("\x1b", 1000)},
		{kube.ReasonOutsideNetwork, "0.0.0.0/0", "", ""},
		{kube.ReasonOutsideNetwork, "10.0.0.0/8", "", ""},
		{kube.ReasonOutsideNetwork, "224.0.0.0/24", "", ""},
		{kube.ReasonBadPodCIDR, "10.244.200.0/32", "", ""},
	}
	for i, c := range cases {
		notes := annotations(fmt.Sprintf("192.168.50.%d", 100+i), fmt.Sprintf("0a:00:00:00:03:%02x", i))
		if c.key != "" {
			notes[string(flannelPrefix)+c.key] = c.value
		}
		cidr := c.cidr
		if cidr == "" {
			cidr = fmt.Sprintf("10.244.%d.0/24", 100+i)
		}
		w.node(fmt.Sprintf("evil%02d", i), cidr, notes)
	}
	s := w.source("n1")
	w.peers(s, back, peerB)
	nstest.Eventually(w, back, func() error {
		snap, _ := s.Snapshot()
		told := map[string]string{}
		for _, p := range snap.Problems {
			told[p.Node] = p.Reason
			if len(p.Text) > 1000 || strings.ContainsFunc(p.Text, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }) {
				w.Errorf("%s: %d bytes: %q", p.Node, len(p.Text), p.Text)
			}
		}
		for i, c := range cases {
			if got := told[fmt.Sprintf("evil%02d", i)]; got != c.reason {
				return fmt.Errorf("evil%02d (%s %.20q): %q, want %s", i, c.key, c.value, got, c.reason)
			}
		}
		return nil
	})
	for _, n := range []string{"n1", "b"} {
		w.get(n) // the server has not been harmed either
	}
}
