package kube

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/weft-cni/weft/subnet/wire"
)

// encoded is a list of Nodes as a server sends it, in both forms.
func encoded(t testing.TB, n int) (list *corev1.NodeList, proto, text []byte) {
	t.Helper()
	list = &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "77"}}
	for i := range n {
		list.Items = append(list.Items, *named(fmt.Sprintf("n%d", i), fmt.Sprint(i), func(n *corev1.Node, notes map[string]string) {
			dual(n, notes)
			n.Labels = map[string]string{"a": "b"}
			n.Status.Images = make([]corev1.ContainerImage, 20)
		}))
	}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list, &b); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	return list, b.Bytes(), text
}

func TestReadNodeListReadsBothForms(t *testing.T) {
	for _, n := range []int{0, 1, 50} {
		list, proto, text := encoded(t, n)
		for form, data := range map[string][]byte{"protobuf": proto, "JSON": text} {
			got, err := readNodes(bufio.NewReaderSize(bytes.NewReader(data), 16))
			if err != nil {
				t.Errorf("%d in %s: %v", n, form, err)
				continue
			}
			if got.ResourceVersion != "77" || len(got.Items) != n {
				t.Errorf("%d in %s: %d at %q", n, form, len(got.Items), got.ResourceVersion)
			}
			for i := range got.Items {
				node := got.Items[i].Object.(*corev1.Node)
				a, b := ParsePeer(&list.Items[i], rulesDual()), ParsePeer(node, rulesDual())
				if !sameClaim(a, b) || len(node.Status.Images) != 0 || len(node.Labels) != 0 {
					t.Fatalf("%s, node %d:\n%s", form, i, cmp.Diff(line(a), line(b)))
				}
			}
		}
	}
}

func TestReadNodeListRefusesWhatIsCutOffOrNoList(t *testing.T) {
	_, proto, text := encoded(t, 3)
	for _, data := range [][]byte{proto, text} {
		for i := range data[:len(data)-8] { // the last bytes are an empty content type
			if list, err := readNodes(bufio.NewReader(bytes.NewReader(data[:i]))); err == nil {
				t.Fatalf("cut at %d of %d: %d Nodes", i, len(data), len(list.Items))
			}
		}
	}
	for name, data := range map[string]string{
		"a huge field":    wire.Magic + "\x12\xff\xff\xff\xff\x0f" + "\x12\xff\xff\xff\xff\x7f",
		"a huge preamble": wire.Magic + "\x0a\xff\xff\xff\xff\x7f",
		"not a length":    wire.Magic + "\x08\x01",
		"no magic":        "k8s",
		"bad node":        wire.Magic + "\x12\x04\x12\x02\x0a\x09",
	} {
		if _, err := readNodes(bufio.NewReader(bytes.NewReader([]byte(data)))); err == nil {
			t.Errorf("%s: read", name)
		}
	}
}

func TestNodesAreListedOnAFake(t *testing.T) {
	client := &Client{Interface: fake.NewClientset(goodNode(nil)), Server: "fake"}
	list, err := nodes(client, testPrefix).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	items, err := meta.ExtractList(list)
	if err != nil || len(items) != 1 || len(items[0].(*corev1.Node).Annotations) != 4 {
		t.Errorf("%v %v", list, err)
	}
}

func readNodes(r *bufio.Reader) (*metav1.List, error) {
	return readList(r, func(n *corev1.Node) runtime.Object { return slim(n, testPrefix) })
}

// BenchmarkReadNodeList compares with client-go's way, which holds the answer and all Nodes at once.
func BenchmarkReadNodeList(b *testing.B) {
	_, proto, _ := encoded(b, 5000)
	b.Run("streamed", func(b *testing.B) {
		for b.Loop() {
			if _, err := readNodes(bufio.NewReader(bytes.NewReader(proto))); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("whole", func(b *testing.B) {
		s := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
		for b.Loop() {
			if _, err := runtime.Decode(s, proto); err != nil {
				b.Fatal(err)
			}
		}
	})
}
