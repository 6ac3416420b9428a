package policyapi

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"text/template"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/network-policy-api/conformance"
	kube "sigs.k8s.io/network-policy-api/conformance/utils/kubernetes"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
)

// firstHostPort is the first of eight ports on the nodes that pods of the hosts' network listen on.
const firstHostPort = 34345

// setUp does what the suite's own does, but for the images, which come from the cluster's nodes and from nowhere else.
func setUp(t *testing.T, s *suite.ConformanceProfileTestSuite) {
	t.Helper()
	for port := firstHostPort; port < firstHostPort+8; port++ {
		s.HostNetworkPorts = append(s.HostNetworkPorts, port)
	}
	s.Applier.FS, s.Applier.HostNetworkPorts = s.FS, s.HostNetworkPorts
	var namespaces, sets []string
	for _, object := range baseObjects(t, s.HostNetworkPorts) {
		if object.GetKind() == "StatefulSet" {
			namespaces, sets = append(namespaces, object.GetNamespace()), append(sets, object.GetName())
			adaptContainers(t, &object)
		}
		if err := s.Client.Create(t.Context(), &object); err != nil {
			t.Fatal(err)
		}
	}
	kube.NamespacesMustBeReady(t, s.Client, s.TimeoutConfig, namespaces, sets)
}

func baseObjects(t *testing.T, ports []int) []unstructured.Unstructured {
	t.Helper()
	file, err := conformance.Manifests.ReadFile("base/manifests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := template.New("base").Parse(string(file))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := page.Execute(&text, kube.TemplateData{HostNetworkPorts: ports}); err != nil {
		t.Fatal(err)
	}
	var objects []unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(&text, 4096); ; {
		var object unstructured.Unstructured
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

func adaptContainers(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	path := []string{"spec", "template", "spec", "containers"}
	containers, found, err := unstructured.NestedSlice(object.Object, path...)
	if err != nil || !found {
		t.Fatalf("%s has no containers: %v", object.GetName(), err)
	}
	for _, container := range containers {
		fields, ok := container.(map[string]any)
		if !ok {
			t.Fatalf("a container of %s is %v", object.GetName(), container)
		}
		fields["image"], fields["imagePullPolicy"] = *image, "Never"
	}
	if err := unstructured.SetNestedSlice(object.Object, containers, path...); err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedField(object.Object, int64(0), "spec", "template", "spec", "terminationGracePeriodSeconds"); err != nil {
		t.Fatal(err)
	}
}
