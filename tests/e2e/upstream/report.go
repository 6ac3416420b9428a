package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weft-cni/weft/tests/lane"
)

// spec is one spec of the suite and what became of it.
type spec struct {
	name    string
	state   string // passed, failed, skipped
	reason  string // why it failed or was skipped
	runTime time.Duration
}

// reason says why specs that match a pattern are left out.
type reason struct{ pattern, text string }

// Selection is a part of the suite.
type Selection struct {
	Verb  string // of cmd/cluster and, with "make e2e-" before it, of the Makefile
	title string
	short string // for the totals
	focus string // what the names of its specs have in common
	procs string // how many specs at a time: most wait more than they work
	left  []reason
	lane  lane.Lane
	note  string // what the page says beside the totals
}

// Network is all that concerns the network, on a cluster of a lane.
func Network(l lane.Lane) Selection {
	return Selection{Verb: "upstream", title: "Kubernetes' own network specs", short: "[sig-network]", focus: `[sig-network]`, procs: "6", left: leftOut(l), lane: l}
}

// Netpol is NetworkPolicy. Each spec asks 81 pairs of pods on several ports.
func Netpol(l lane.Lane) Selection {
	return Selection{
		Verb: "netpol", title: "Kubernetes' own specs of NetworkPolicy", short: "Netpol", focus: "[sig-network] Netpol", procs: "4", lane: l,
		note: "The kernel has no SCTP sockets, so pods speak SCTP over raw ones (tests/e2e/cmd/sctp): the first two packets of an association.",
	}
}

// File is the name of the page with the results. That of IPv4 has no lane in it, being the first there was.
func (of Selection) File() string {
	if of.lane == lane.IPv4 {
		return "e2e-" + of.Verb + ".md"
	}
	return fmt.Sprintf("e2e-%s-%s.md", of.Verb, of.lane)
}

// command is what writes the page.
func (of Selection) command() string {
	if of.lane == lane.IPv4 {
		return "make e2e-" + of.Verb
	}
	return fmt.Sprintf("%s=%s make e2e-%s", lane.Env, of.lane, of.Verb)
}

// leftOut lists the reasons, the first that matches a spec's name counts.
func leftOut(l lane.Lane) []reason {
	return append(reasonsOf(l), []reason{
		{`\[Feature:LoadBalancer\]|type LoadBalancer`, "needs a cloud's load balancer"},
		{`\[Feature:NetworkPolicy\]`, "NetworkPolicy has tests of its own"},
		{`\[Feature:SCTPConnectivity\]`, "needs SCTP in the kernel"},
		{`\[Feature:Networking-(DNS|IPv4|IPv6)\]`, "needs the Internet"},
		{`\[Provider:gce\]`, "needs Google's cloud"},
		{`\[Disruptive\]`, "breaks nodes by a cloud's means"},
		{`\[Serial\]`, "must run alone; concerns kube-proxy and the API, not the pod network"},
		{`\[Slow\]`, "slow; what it covers is covered by faster specs"},
		{featureOff(l), "needs a feature that this cluster does not turn on"},
	}...)
}

// reasonsOf are those of a lane alone.
func reasonsOf(l lane.Lane) []reason {
	if l == lane.Dual {
		return nil
	}
	return []reason{{`\[Feature:IPv6DualStack\]`, "needs a dual-stack cluster"}}
}

// featureOff matches the names of all features, but for that of the lane: a pattern of ginkgo's has no way to say "not this",
// so it spells out how another word begins.
func featureOff(l lane.Lane) string {
	if l == lane.Dual {
		return `\[Feature:([^I]|I[^P]|IPV)[^\]]*\]|\[FeatureGate:[^\]]*\]`
	}
	return `\[Feature:[^\]]*\]|\[FeatureGate:[^\]]*\]`
}

// known lists specs that fail for a reason that is a decision of ours.
func known() []reason {
	return []reason{{
		`should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes`,
		"wants a host's address kept when the host reaches a pod on another node through its own NodePort; as with flannel, what a host " +
			"sends to another node's pods from an address outside the pod network is masqueraded, so that the answer comes back the same way",
	}}
}

// matching finds the first reason whose pattern matches the name of a spec.
func matching(reasons []reason, name string) (string, bool) {
	for _, r := range reasons {
		if regexp.MustCompile(r.pattern).MatchString(name) {
			return r.text, true
		}
	}
	return "", false
}

// unexpected returns an error if a spec failed that is not known to.
func unexpected(specs []spec) error {
	var errs []error
	for _, s := range specs {
		if _, is := matching(known(), s.name); s.state == "failed" && !is {
			errs = append(errs, fmt.Errorf("failed: %s", s.name))
		}
	}
	return errors.Join(errs...)
}

// ginkgoReport is what is read of ginkgo's JSON report.
type ginkgoReport []struct {
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeType            string
		LeafNodeText            string
		State                   string
		RunTime                 time.Duration
		Failure                 struct{ Message string }
	}
}

// readReport reads the specs of a selection from a report, in the order of their names.
func readReport(file string, of Selection) ([]spec, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	var report ginkgoReport
	if err := json.Unmarshal(text, &report); err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	var specs []spec
	for _, suite := range report {
		for _, r := range suite.SpecReports {
			name := strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " ")
			if r.LeafNodeType != "It" || !strings.Contains(name, of.focus) {
				continue
			}
			specs = append(specs, of.judge(spec{name: name, state: r.State, reason: r.Failure.Message, runTime: r.RunTime}))
		}
	}
	slices.SortFunc(specs, func(a, b spec) int { return strings.Compare(a.name, b.name) })
	return specs, nil
}

// judge reduces ginkgo's states to three and gives a spec that was never selected its reason.
func (of Selection) judge(s spec) spec {
	switch s.state {
	case "passed":
		s.reason = ""
		return s
	case "skipped", "pending":
		s.state = "skipped"
		if s.reason != "" {
			return s
		}
		s.reason, _ = matching(of.left, s.name)
		return s
	}
	s.state = "failed"
	if text, is := matching(known(), s.name); is {
		s.reason = text
	}
	return s
}

type counts struct{ passed, failed, skipped int }

func count(specs []spec) counts {
	var c counts
	for _, s := range specs {
		switch s.state {
		case "passed":
			c.passed++
		case "failed":
			c.failed++
		default:
			c.skipped++
		}
	}
	return c
}
