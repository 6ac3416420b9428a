package upstream

import (
	"fmt"
	"strings"
	"time"

	"github.com/weft-cni/weft/tests/e2e/artifacts"
	"github.com/weft-cni/weft/tests/lane"
)

// table renders the specs as a Markdown page: totals, then failed, passed and skipped ones.
func table(of Selection, specs []spec) string {
	var conformance []spec
	for _, s := range specs {
		if strings.Contains(s.name, "[Conformance]") {
			conformance = append(conformance, s)
		}
	}
	all, conf := count(specs), count(conformance)
	var out strings.Builder
	fmt.Fprintf(&out, `# %s

Written by `+"`%s`"+`: Kubernetes %s's e2e.test with `+"`--provider=local`"+` on a kubeadm cluster of three nodes with %s.
%s
| | passed | failed | skipped |
|---|---|---|---|
| %s [Conformance] | %d | %d | %d |
| %s, all | %d | %d | %d |
`, of.title, of.command(), artifacts.KubernetesVersion, families(of.lane), line(of.note), of.short, conf.passed, conf.failed, conf.skipped, of.short, all.passed, all.failed, all.skipped)
	for _, section := range []struct{ state, title, column string }{
		{"failed", "Failed", "why"}, {"passed", "Passed", "time"}, {"skipped", "Skipped", "why"},
	} {
		fmt.Fprintf(&out, "\n## %s\n\n| spec | %s |\n|---|---|\n", section.title, section.column)
		for _, s := range specs {
			if s.state == section.state {
				fmt.Fprintf(&out, "| %s | %s |\n", cell(s.name), cell(s.remark()))
			}
		}
	}
	return out.String()
}

// line is a text as a line of its own, if there is one.
func line(text string) string {
	if text == "" {
		return ""
	}
	return text + "\n"
}

// families says what a lane's clusters have.
func families(l lane.Lane) string {
	return map[lane.Lane]string{lane.IPv4: "IPv4", lane.Dual: "both families", lane.IPv6: "IPv6 alone"}[l]
}

func (s spec) remark() string {
	if s.state == "passed" {
		return s.runTime.Round(time.Second).String()
	}
	return s.reason
}

// cell makes one line of a text that fits into a Markdown table.
func cell(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "..."
	}
	return strings.ReplaceAll(strings.TrimPrefix(text, "[sig-network] "), "|", `\|`)
}
