package watch

import (
	"context"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/weft-cni/weft/backend/policy"
)

// demands are the feeds that run only now and then.
type demands struct {
	cluster, pods, namespaces, nodes *demand
}

// group is what Run runs.
type group []func(context.Context)

func (g group) run(ctx context.Context) {
	var tasks sync.WaitGroup
	for _, f := range g {
		tasks.Go(func() { f(ctx) })
	}
	tasks.Wait()
}

// feeds makes them all: two that run always, and four on demand.
func (s *Source) feeds() (group, error) {
	c := s.cfg.Client
	always := group{s.feed(policiesOf(c), s.policies)}
	crd, err := definition(c)
	if errors.Is(err, errFake) {
		s.definition.synced = true // before anything runs: there are none
		s.demands.cluster = newDemand(func(context.Context) {}, func() {})
	} else {
		cnp, clusterErr := clusterPoliciesOf(c)
		if err = errors.Join(err, clusterErr); err != nil {
			return nil, err
		}
		always = append(always, s.feed(crd, s.definition))
		s.demands.cluster = newDemand(s.feed(cnp, s.cluster), s.forgetting(s.cluster.forget, kindCluster))
	}
	s.demands.pods = newDemand(s.feed(podsOfCluster(c, s.pods.kind), s.pods), s.forgetting(s.pods.forget, kindPods))
	s.demands.namespaces = newDemand(s.feed(namespacesOf(c, s.namespaces.kind), s.namespaces), s.forgetting(s.namespaces.forget, kindNamespaces))
	s.demands.nodes = newDemand(s.feed(nodesOf(c, s.nodes.kind), s.nodes), s.forgetting(s.nodes.forget, kindNodes))
	for _, d := range []*demand{s.demands.cluster, s.demands.pods, s.demands.namespaces, s.demands.nodes} {
		always = append(always, d.loop)
	}
	return always, nil
}

// forgetting empties a table whose feed has ended, and what is remembered of its answers.
func (s *Source) forgetting(forget func(), kind string) func() {
	return func() {
		forget()
		s.answers.note(kind, nil)
		poke(s.dirty)
	}
}

// policiesNow are all policies, and whether they are all. A definition that does not serve our version counts as none.
func (s *Source) policiesNow() (ns []*policy.NetworkPolicy, cluster []*policy.ClusterPolicy, known bool) {
	ns, known = s.policies.list()
	defined, defKnown := s.definition.list()
	if !defKnown && apierrors.IsForbidden(s.answers.refusal(kindDefinition)) {
		defKnown = true // an older ClusterRole: NetworkPolicies work
	}
	s.demands.cluster.want(len(defined) > 0)
	if len(defined) == 0 {
		return ns, nil, known && defKnown
	}
	cluster, served := s.cluster.list()
	if s.answers.refusal(kindCluster) != nil {
		served = true // NetworkPolicies work
	}
	return ns, cluster, known && defKnown && served
}

// notServed tells why ClusterNetworkPolicies are not enforced although the cluster defines them.
func (s *Source) notServed() []Problem {
	switch err := s.answers.refusal(kindCluster); {
	case apierrors.IsNotFound(err):
		return []Problem{{Policy: definitionName, Text: "the definition does not serve version v1beta1; no ClusterNetworkPolicy is enforced"}}
	case apierrors.IsForbidden(err):
		return []Problem{{Policy: definitionName, Text: "the ClusterRole does not let us list and watch " + definitionName +
			"; none is enforced that was not seen before; apply weft's manifest, which has the rights"}}
	case apierrors.IsForbidden(s.answers.refusal(kindDefinition)):
		return []Problem{{Policy: definitionName, Text: "the ClusterRole does not let us look for the definition; no ClusterNetworkPolicy is enforced that was not seen before; apply weft's manifest, which has the rights"}}
	}
	return nil
}
