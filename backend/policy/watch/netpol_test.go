package watch

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	policyapi "sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/weft-cni/weft/backend/policy"
)

func readYAML[T any](t *testing.T, text string) *T {
	t.Helper()
	out := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return out
}

// words render a policy so that it can be read in a table.
func words(rules [2][]policy.Rule) string {
	var lines []string
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		for _, r := range rules[d] {
			lines = append(lines, d.String()+" "+[]string{"accept", "deny", "pass"}[r.Action]+" "+peerWords(r)+" on "+portWords(r))
		}
	}
	return strings.Join(lines, "\n")
}

func peerWords(r policy.Rule) string {
	if r.AllPeers {
		return "everybody"
	}
	var out []string
	for _, p := range r.Peers {
		switch {
		case p.Nodes != nil:
			out = append(out, "nodes["+p.Nodes.String()+"]")
		case p.Networks != nil:
			for _, n := range p.Networks {
				text := n.CIDR.String()
				for _, e := range n.Except {
					text += "-" + e.String()
				}
				out = append(out, text)
			}
		case p.Namespaces != nil:
			out = append(out, "pods["+p.Pods.String()+"]@namespaces["+p.Namespaces.String()+"]")
		default:
			out = append(out, "pods["+p.Pods.String()+"]@"+p.Namespace)
		}
	}
	return strings.Join(out, " ")
}

func portWords(r policy.Rule) string {
	if r.AllPorts {
		return "everything"
	}
	var out []string
	for _, p := range r.Ports {
		out = append(out, p.String())
	}
	return strings.Join(out, " ")
}

func isolates(b [2]bool) string {
	return strings.TrimSpace(map[bool]string{true: "ingress "}[b[0]] + map[bool]string{true: "egress"}[b[1]])
}

func TestNetworkPoliciesAreReadAsTheAPISays(t *testing.T) {
	for name, c := range map[string]struct{ spec, isolates, rules, problem string }{
		"default deny of ingress": {spec: "podSelector: {}", isolates: "ingress"},
		"default deny of both":    {spec: "podSelector: {}\npolicyTypes: [Ingress, Egress]", isolates: "ingress egress"},
		"egress only":             {spec: "podSelector: {}\npolicyTypes: [Egress]\ningress: [{}]", isolates: "egress", rules: "ingress accept everybody on everything"},
		"egress by its rules":     {spec: "podSelector: {}\negress: [{}]", isolates: "ingress egress", rules: "egress accept everybody on everything"},
		"allow all":               {spec: "podSelector: {}\ningress: [{}]", isolates: "ingress", rules: "ingress accept everybody on everything"},
		"N-07 and, or": {spec: `
podSelector: {}
ingress:
- from:
  - namespaceSelector: {matchLabels: {team: a}}
    podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [b, a]}]}
  - namespaceSelector: {}
  - podSelector: {matchExpressions: [{key: tier, operator: DoesNotExist}, {key: app, operator: Exists}]}`,
			isolates: "ingress", rules: "ingress accept pods[app notin (a,b)]@namespaces[team in (a)] pods[]@namespaces[] pods[!tier,app]@shop on everything"},
		"N-06 ipBlock with except": {spec: `
podSelector: {}
egress:
- to:
  - ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8, 10.96.0.0/12]}
  - ipBlock: {cidr: 10.96.0.10/32}
  - ipBlock: {cidr: 2001:db8::1/32, except: ["2001:db8:1::/48"]}
  - ipBlock: {cidr: 010.001.0.0/16}
  - ipBlock: {cidr: "::ffff:192.168.0.0/112"}`, isolates: "ingress egress",
			rules: "egress accept 0.0.0.0/0-10.0.0.0/8-10.96.0.0/12 10.96.0.10/32 2001:db8::/32-2001:db8:1::/48 10.1.0.0/16 192.168.0.0/16 on everything"},
		"N-09 port lists": {spec: `
podSelector: {}
ingress:
- ports: [{}, {protocol: UDP}, {port: 80}, {port: http}, {protocol: SCTP, port: 1, endPort: 65535}, {port: 7, endPort: 7}]`,
			isolates: "ingress", rules: "ingress accept everybody on tcp udp 80/tcp http/tcp 1-65535/sctp 7/tcp"},
		"a bad CIDR": {spec: "podSelector: {}\ningress: [{from: [{ipBlock: {cidr: 10.0.0.0/33}}, {podSelector: {}}]}]", isolates: "ingress",
			rules: "ingress accept pods[]@shop on everything", problem: `ingress[0] peer 0: ipBlock: "10.0.0.0/33" is no CIDR; it allows nobody`},
		"only a bad CIDR": {spec: "podSelector: {}\ningress: [{from: [{ipBlock: {cidr: x}}]}]", isolates: "ingress",
			problem: `ingress[0] peer 0: ipBlock: "x" is no CIDR; it allows nobody`},
		"a bad exception": {spec: "podSelector: {}\negress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1]}}]}]", isolates: "ingress egress",
			problem: `egress[0] peer 0: ipBlock: except: "10.1" is no CIDR; it allows nobody`},
		"a peer of a later API": {spec: "podSelector: {}\ningress: [{from: [{}]}]", isolates: "ingress",
			problem: "ingress[0] peer 0: none of podSelector, namespaceSelector and ipBlock; it allows nobody"},
		"a protocol of a later API": {spec: "podSelector: {}\ningress: [{ports: [{protocol: QUIC, port: 443}, {port: 80}]}]", isolates: "ingress",
			rules: "ingress accept everybody on 80/tcp", problem: `ingress[0] port 0: protocol "QUIC" is not known; it allows nothing`},
		"a type of a later API": {spec: "podSelector: {}\npolicyTypes: [Sideways]", isolates: "ingress egress",
			problem: `policyTypes: "Sideways" is not known; it is taken for both directions`},
		"an operator of a later API": {spec: "podSelector: {matchExpressions: [{key: a, operator: Like, values: [b]}]}", isolates: "ingress",
			problem: `podSelector: read a label selector: unknown operator "Like"; it isolates every pod of its namespace`},
		"ports the wrong way round": {spec: "podSelector: {}\ningress: [{ports: [{port: 90, endPort: 80}]}]", isolates: "ingress",
			problem: "ingress[0] port 0: ports 90 to 80 are no range within 1 to 65535; it allows nothing"},
	} {
		np := readYAML[networkingv1.NetworkPolicy](t, "metadata: {name: p, namespace: shop, uid: u1}\nspec:\n  "+strings.ReplaceAll(strings.TrimSpace(c.spec), "\n", "\n  "))
		got, problems := parsePolicy(np)
		if d := cmp.Diff([]string{c.isolates, c.rules, c.problem}, []string{isolates(got.Isolates), words(got.Rules), strings.Join(problems, "\n")}); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func TestClusterNetworkPoliciesAreReadAndFailClosed(t *testing.T) {
	for name, c := range map[string]struct{ spec, rules, problem string }{
		"admin": {spec: `
tier: Admin
subject: {namespaces: {matchLabels: {team: a}}}
ingress:
- {name: one, action: Accept, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 80}}}, {sctp: {destinationPort: {range: {start: 1, end: 9}}}}]}
- {action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: x}}}}]}
egress:
- {action: Pass, to: [{networks: [10.0.0.0/8, "fd00::/8"]}, {nodes: {}}], protocols: [{destinationNamedPort: dns}]}`,
			rules: "ingress accept pods[]@namespaces[] on 80/tcp 1-9/sctp\ningress deny pods[app in (x)]@namespaces[] on everything\n" +
				"egress pass 10.0.0.0/8 fd00::/8 nodes[] on dns/any"},
		"domain names accept nothing": {spec: `
tier: Admin
subject: {namespaces: {}}
egress:
- {action: Accept, to: [{domainNames: ["*.example.com"]}, {networks: [10.0.0.0/8]}]}
- {action: Deny, to: [{networks: [0.0.0.0/0]}]}`,
			rules:   "egress deny 0.0.0.0/0 on everything",
			problem: "egress[0]: peer 0: domainNames are not supported; it accepts nothing"},
		"a peer of a later API": {spec: `
tier: Baseline
subject: {pods: {namespaceSelector: {}, podSelector: {}}}
ingress:
- {action: Accept, from: [{}]}
- {action: Pass, from: [{}]}
egress:
- {action: Deny, to: [{}], protocols: [{tcp: {destinationPort: {number: 80}}}]}`,
			rules: "ingress deny everybody on everything\negress deny everybody on everything",
			problem: "ingress[0]: peer 0: " + errUnknown.Error() + "; it accepts nothing\ningress[1]: peer 0: " + errUnknown.Error() +
				"; it denies everything\negress[0]: peer 0: " + errUnknown.Error() + "; it denies everything"},
		"a protocol of a later API": {spec: `
tier: Admin
subject: {namespaces: {}}
ingress:
- {action: Accept, from: [{namespaces: {}}], protocols: [{}]}
- {action: Deny, from: [{namespaces: {}}], protocols: [{udp: {}}]}`,
			rules:   "ingress deny everybody on everything",
			problem: "ingress[0]: protocol 0: " + errUnknown.Error() + "; it accepts nothing\ningress[1]: protocol 0: " + errUnknown.Error() + "; it denies everything"},
		"a subject of a later API": {spec: `
tier: Admin
subject: {}
ingress:
- {action: Accept, from: [{namespaces: {}}]}
- {action: Deny, from: [{namespaces: {}}]}`,
			rules: "ingress deny everybody on everything", problem: "subject: " + errUnknown.Error() + "; its Deny and Pass rules deny for every pod"},
		"a tier of a later API": {spec: `
tier: Penthouse
subject: {namespaces: {}}
ingress:
- {action: Accept, from: [{namespaces: {}}]}
- {action: Shrug, from: [{namespaces: {}}]}`,
			rules: "ingress deny everybody on everything",
			problem: `tier "Penthouse" is not known; its Deny and Pass rules are taken for Admin ones that deny` + "\n" +
				`ingress[1]: action "Shrug" is not known; it denies everything`},
		"a CIDR that is none": {spec: `
tier: Admin
subject: {namespaces: {}}
egress:
- {action: Deny, to: [{networks: [10.0.0.0]}]}`,
			rules: "egress deny everybody on everything", problem: `egress[0]: peer 0: networks: "10.0.0.0" is no CIDR; it denies everything`},
	} {
		cnp := readYAML[policyapi.ClusterNetworkPolicy](t, "metadata: {name: p}\nspec:\n  priority: 7\n  "+strings.ReplaceAll(strings.TrimSpace(c.spec), "\n", "\n  "))
		got, problems := parseClusterPolicy(cnp)
		if d := cmp.Diff([]string{c.rules, c.problem}, []string{words(got.Rules), strings.Join(problems, "\n")}); d != "" || got.Priority != 7 {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}
