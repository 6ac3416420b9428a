package policyapi

import (
	"flag"
	"os"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	api "sigs.k8s.io/network-policy-api/apis/v1beta1"
	report "sigs.k8s.io/network-policy-api/conformance/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	"sigs.k8s.io/network-policy-api/conformance/utils/config"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
	"sigs.k8s.io/yaml"
)

// Without a cluster there is nothing to test: the flags name it.
var (
	access  = flag.String("cluster", "", "the kubeconfig of the cluster; without it there is no test")
	output  = flag.String("report", "", "where the report goes")
	image   = flag.String("image", "", "the image that stands in for agnhost")
	version = flag.String("version", "", "the version of the product")
)

func TestClusterNetworkPolicyConformance(t *testing.T) {
	if *access == "" {
		t.Skip("needs a cluster: make e2e-policyapi brings one up and runs this")
	}
	s := newSuite(t)
	setUp(t, s)
	if err := s.Run(t, tests.ConformanceTests); err != nil {
		t.Fatal(err)
	}
	result, err := s.Report()
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*output, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

func newSuite(t *testing.T) *suite.ConformanceProfileTestSuite {
	t.Helper()
	rest, err := clientcmd.BuildConfigFromFlags("", *access)
	if err != nil {
		t.Fatal(err)
	}
	rest.QPS, rest.Burst = 100, 100
	objects, err := client.New(rest, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, add := range []func() error{
		func() error { return api.Install(objects.Scheme()) },
		func() error { return apiextensionsv1.AddToScheme(objects.Scheme()) },
	} {
		if err := add(); err != nil {
			t.Fatal(err)
		}
	}
	clients, err := kubernetes.NewForConfig(rest)
	if err != nil {
		t.Fatal(err)
	}
	s, err := suite.NewConformanceProfileTestSuite(suite.ConformanceProfileOptions{
		Options: suite.Options{
			Client: objects, ClientSet: clients, KubeConfig: *rest, EnableAllSupportedFeatures: true,
			// What is denied is asked twice until the time is over, 173 times. Kubernetes' own specs wait a second too.
			TimeoutConfig: config.TimeoutConfig{RequestTimeout: time.Second},
		},
		Implementation: report.Implementation{
			Organization: "weft-cni", Project: "weft", URL: "https://github.com/weft-cni/weft", Version: *version,
			Contact:               []string{"https://github.com/weft-cni/weft/issues"},
			AdditionalInformation: "make e2e-policyapi; the kernel has no SCTP sockets, so pods speak SCTP over raw ones (tests/e2e/cmd/sctp)",
		},
		ConformanceProfiles: sets.New(suite.CNPConformanceProfileName),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
