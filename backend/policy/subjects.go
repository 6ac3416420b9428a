package policy

// Subjects lists, by the policy's Key, the pods that each policy selects; a policy that selects none is not in it.
func (w World) Subjects() map[string][]*Pod {
	labels := map[string]Labels{}
	for _, ns := range w.Namespaces {
		labels[ns.Name] = ns.Labels
	}
	out := map[string][]*Pod{}
	for _, p := range w.Pods {
		if !p.member() {
			continue
		}
		for _, np := range w.Policies {
			if np.Namespace == p.Namespace && np.Pods.Matches(p.Labels) {
				out[np.Key()] = append(out[np.Key()], p)
			}
		}
		for _, cp := range w.Cluster {
			if cp.selects(p, labels[p.Namespace]) {
				out[cp.Key()] = append(out[cp.Key()], p)
			}
		}
	}
	return out
}
