package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-cni/weft/subnet"
)

// ErrNodeChanged tells that the Node is another one than in the snapshot; wait for the next snapshot.
var ErrNodeChanged = errors.New("the Node was deleted or re-created since the snapshot")

// RegistrarConfig is what a Registrar needs.
type RegistrarConfig struct {
	Client           *Client
	NodeName         string
	Prefix           Prefix
	Conf             subnet.NetConf // the own Node has to fit into it before anything is announced
	LeaveUnavailable bool           // --set-node-network-unavailable=false: the cloud clears the condition
	Events           *Events        // may be nil
	Log              *slog.Logger
}

// Registrar keeps the own Node's annotations and condition as they should be. It has no loop of its own: whoever calls
// Sync calls it again after an error, and whenever the snapshot or the announcement changes. Not for concurrent use.
type Registrar struct {
	cfg  RegistrarConfig
	log  *slog.Logger
	uid  string            // of the Node that carries sent
	sent map[string]string // what the Node was last seen or made to carry
	was  string            // UID of the Node whose condition was cleared once
	duel duel
}

// NewRegistrar makes a Registrar.
func NewRegistrar(cfg RegistrarConfig) *Registrar { return &Registrar{cfg: cfg, log: cfg.Log} }

// Sync makes the Node carry the announcement. When the snapshot says that it does, no request is made. Otherwise the
// Node is read, since a snapshot lags behind what we wrote ourselves, and only what really differs is patched. Errors
// of the own Node's state wrap the sentinels of package subnet: then nothing is announced.
func (r *Registrar) Sync(ctx context.Context, snap subnet.Snapshot, a Announcement) error {
	self := snap.Self
	if err := r.cfg.Conf.CheckSelf(self); err != nil {
		r.cfg.Events.Report(ctx, snap, err)
		return err
	}
	if a = r.possible(self, a); a.PublicIP == [2]netip.Addr{} {
		return fmt.Errorf("announce node %q: no public IP is chosen yet", self.Name)
	}
	defer r.cfg.Events.problems(ctx, snap) // after the patch: Events can wait
	if !r.differs(self, a) {
		r.uid, r.sent = self.UID, a.Annotations(r.cfg.Prefix, self.Overwrite)
		r.cleared(self)
		return nil
	}
	live, err := r.read(ctx)
	if err != nil {
		return err
	}
	if live.UID != self.UID {
		return fmt.Errorf("announce node %q: %w", self.Name, ErrNodeChanged)
	}
	want := a.Annotations(r.cfg.Prefix, live.Overwrite)
	diff := differing(r.cfg.Prefix, live.Announced, want)
	condition := r.wantsCondition(live, a)
	if len(diff) > 0 || condition {
		foreign := r.foreign(live, want)
		setBack := condition && r.was == live.UID
		if (len(foreign) > 0 || setBack) && !r.duel.strike(time.Now()) {
			text := describe(r.cfg.Prefix, foreign)
			if setBack {
				text = strings.TrimSpace(text + " NetworkUnavailable=" + live.NetworkUnavailable)
			}
			return fmt.Errorf("announce node %q: %w: %s", self.Name, ErrDuel, text)
		}
		if err := r.patch(ctx, statusPatch(r.cfg.Prefix, diff, condition, metav1.Now())); err != nil {
			return fmt.Errorf("announce node %q: %w", self.Name, err)
		}
		r.reportForeign(ctx, live, foreign)
		r.log.Info("announced the own node", "annotations", describe(r.cfg.Prefix, diff), "networkUnavailableCleared", condition)
	}
	r.uid, r.sent = live.UID, want
	if condition {
		live.NetworkUnavailable = string(corev1.ConditionFalse)
	}
	r.cleared(live)
	return nil
}

// cleared notes a Node whose condition is as we leave it: what is otherwise later is somebody else's doing.
func (r *Registrar) cleared(self subnet.Self) {
	if self.NetworkUnavailable == string(corev1.ConditionFalse) {
		r.was = self.UID
	}
}

// possible takes out of an announcement the families in which the Node has no range of the Network.
func (r *Registrar) possible(self subnet.Self, a Announcement) Announcement {
	for _, f := range subnet.Families() {
		if !r.cfg.Conf.Enabled[f] || !self.PodCIDRs[f].IsValid() || r.cfg.Conf.CheckFamily(f, self) != nil {
			a.PublicIP[f], a.MAC[f], a.WGPorts[f] = netip.Addr{}, subnet.MAC{}, 0
		}
	}
	return a
}

// differs compares the snapshot's Node with what is wanted.
func (r *Registrar) differs(self subnet.Self, a Announcement) bool {
	return len(differing(r.cfg.Prefix, self.Announced, a.Annotations(r.cfg.Prefix, self.Overwrite))) > 0 || r.wantsCondition(self, a)
}

func (r *Registrar) wantsCondition(self subnet.Self, a Announcement) bool {
	return a.Ready && !r.cfg.LeaveUnavailable && self.NetworkUnavailable != string(corev1.ConditionFalse)
}

func (r *Registrar) read(ctx context.Context) (subnet.Self, error) {
	ctx, cancel := call(ctx)
	defer cancel()
	node, err := r.cfg.Client.CoreV1().Nodes().Get(ctx, r.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return subnet.Self{}, fmt.Errorf("read node %q: %w", r.cfg.NodeName, err)
	}
	self, _ := ParseSelf(node, r.cfg.Prefix)
	return self, nil
}

func (r *Registrar) patch(ctx context.Context, body []byte) error {
	ctx, cancel := call(ctx)
	defer cancel()
	_, err := r.cfg.Client.CoreV1().Nodes().Patch(ctx, r.cfg.NodeName, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	return err
}

// foreign picks the annotations that somebody else changed after we had written them.
func (r *Registrar) foreign(live subnet.Self, want map[string]string) map[string]string {
	changed := map[string]string{}
	if r.uid != live.UID {
		return changed
	}
	for key, value := range differing(r.cfg.Prefix, live.Announced, r.sent) {
		if want[key] == value {
			changed[key] = live.Announced[key]
		}
	}
	return changed
}

// reportForeign tells of it: it may be another agent, a script, or an attacker who wants the node's packets.
func (r *Registrar) reportForeign(ctx context.Context, live subnet.Self, changed map[string]string) {
	if len(changed) == 0 {
		return
	}
	text := "somebody else changed annotations of this node, they are put back: " + describe(r.cfg.Prefix, changed)
	r.log.Warn(text)
	r.cfg.Events.Warn(ctx, live, "AnnotationsChanged", text)
}
