package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
)

// sessionLife is how long a WireGuard session may be used after its handshake (REJECT_AFTER_TIME of the protocol). A peer
// without a newer one does not hear us where we send to, or has had nothing to say.
const sessionLife = 3 * time.Minute

// clamped is a private key as the kernel keeps it: a few bits of every such key are fixed.
func clamped(s subnet.Secret) subnet.Secret {
	if !s.IsZero() {
		s[0] &= 248
		s[31] = s[31]&127 | 64
	}
	return s
}

// isLive reports whether a peer has a session.
func (s State) isLive(k WGKey) bool {
	at, ok := s.Handshakes[k]
	return ok && (s.Read.IsZero() || s.Read.Sub(at) < sessionLife)
}

// dumpWireGuard completes the WireGuard devices of a state with what rtnetlink does not tell, and adds their peers. A device
// that has gone since the links were listed is left out.
func (c *Conn) dumpWireGuard(ctx context.Context, s State) error {
	for name, link := range s.Links {
		if link.Kind != KindWireGuard || kindOf(name) != KindWireGuard {
			continue
		}
		devices, err := consistent(ctx, "WireGuard peers", func() ([]*wgDevice, error) {
			d, err := c.wgDevice(name)
			return []*wgDevice{d}, err
		})
		if errors.Is(err, unix.ENODEV) {
			delete(s.Links, name)
			continue
		}
		if err != nil {
			return explainWireGuard(err)
		}
		devices[0].addTo(s, name, link)
	}
	return nil
}

// addTo files a device and its peers.
func (d *wgDevice) addTo(s State, name string, link Link) {
	link.Port, link.Key = d.port, d.key
	if d.mark != 0 {
		link.Extra = fmt.Sprintf("fwmark 0x%x", d.mark)
	}
	s.Links[name] = link
	for key, peer := range d.peers {
		k := WGKey{Link: name, Key: key}
		s.Peers[k], s.Sent[k] = peer.value, peer.sent
		if !peer.handshake.IsZero() {
			s.Handshakes[k] = peer.handshake
		}
	}
}

// wgDevice reads a device with its peers.
func (c *Conn) wgDevice(name string) (*wgDevice, error) {
	req, err := c.wireGuard(unix.WG_CMD_GET_DEVICE, unix.NLM_F_DUMP, name)
	if err != nil {
		return nil, err
	}
	d := &wgDevice{peers: map[subnet.Key]*wgPeer{}}
	var bad error
	err = req.ExecuteIter(unix.NETLINK_GENERIC, 0, func(msg []byte) bool {
		if len(msg) < nl.SizeofGenlmsg {
			bad = unix.EBADMSG
		} else if err := d.add(msg[nl.SizeofGenlmsg:]); err != nil {
			bad = err
		}
		return bad == nil
	})
	return d, errors.Join(err, bad)
}

// wireGuard starts a message about a device.
func (c *Conn) wireGuard(command uint8, flags int, name string) (*nl.NetlinkRequest, error) {
	family, err := c.genericFamily(unix.WG_GENL_NAME)
	if err != nil {
		return nil, fmt.Errorf("find WireGuard's netlink family: %w", err)
	}
	req := c.genericRequest(family, flags, command)
	req.AddData(nl.NewRtAttr(unix.WGDEVICE_A_IFNAME, nl.ZeroTerminated(name)))
	return req, nil
}

// changeWireGuard changes what differs on a live device.
func (c *Conn) changeWireGuard(op Op) error {
	d, err := c.wgDevice(op.Name)
	if err != nil {
		return explainWireGuard(err)
	}
	have := Link{Key: d.key, Port: d.port}
	if d.mark != 0 {
		have.Extra = "fwmark"
	}
	return c.explainLink(op, c.setWireGuard(op.Name, op.Link, have))
}

// setWireGuard sets what rtnetlink does not: key, port, and no mark, which would be somebody else's.
func (c *Conn) setWireGuard(name string, want, have Link) error {
	if want.Key == have.Key && want.Port == have.Port && want.Extra == have.Extra {
		return nil
	}
	req, err := c.wireGuard(unix.WG_CMD_SET_DEVICE, unix.NLM_F_ACK, name)
	if err != nil {
		return explainWireGuard(err)
	}
	if want.Key != have.Key {
		req.AddData(nl.NewRtAttr(unix.WGDEVICE_A_PRIVATE_KEY, want.Key[:]))
	}
	if want.Port != have.Port {
		req.AddData(nl.NewRtAttr(unix.WGDEVICE_A_LISTEN_PORT, nl.Uint16Attr(want.Port)))
	}
	if want.Extra != have.Extra {
		req.AddData(nl.NewRtAttr(unix.WGDEVICE_A_FWMARK, nl.Uint32Attr(0)))
	}
	_, err = req.Execute(unix.NETLINK_GENERIC, 0)
	return explainWireGuard(err)
}

// setPeer makes or changes a peer. Ranges that belonged to another peer of the device are its own from then on.
func (c *Conn) setPeer(op Op) error {
	req, err := c.wireGuard(unix.WG_CMD_SET_DEVICE, unix.NLM_F_ACK, op.PeerKey.Link)
	if err != nil {
		return explainWireGuard(err)
	}
	peers := nl.NewRtAttr(nested(unix.WGDEVICE_A_PEERS), nil)
	flags := uint32(0)
	if op.PeerWas.More > 0 { // ranges that are not known by name
		flags = unix.WGPEER_F_REPLACE_ALLOWEDIPS
	}
	peer := peerMsg(op.PeerKey.Key, flags)
	if op.Peer.Endpoint.IsValid() {
		peer.AddRtAttr(unix.WGPEER_A_ENDPOINT, sockaddr(op.Peer.Endpoint))
	}
	peer.AddRtAttr(unix.WGPEER_A_PRESHARED_KEY, op.Peer.PSK[:]) // zero takes it away
	peer.AddRtAttr(unix.WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL, nl.Uint16Attr(uint16(op.Peer.Keepalive/time.Second)))
	peers.AddChild(withAllowed(peer, valid(op.Peer.Allowed)))
	req.AddData(peers)
	_, err = req.Execute(unix.NETLINK_GENERIC, 0)
	return explainWireGuard(err)
}

// valid lists the ranges that there are.
func valid(ranges [2]netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(ranges[:]), func(p netip.Prefix) bool { return !p.IsValid() })
}

func withAllowed(peer *nl.RtAttr, ranges []netip.Prefix) *nl.RtAttr {
	if len(ranges) > 0 {
		peer.AddChild(allowedMsg(ranges))
	}
	return peer
}

// delRange takes a range away from a peer: it is given to a peer that exists within this message only, and goes with it. Kernels
// know no other way but to replace all ranges, with a moment in which packets find none.
func (c *Conn) delRange(op Op) error {
	req, err := c.wireGuard(unix.WG_CMD_SET_DEVICE, unix.NLM_F_ACK, op.PeerKey.Link)
	if err == nil {
		peers := nl.NewRtAttr(nested(unix.WGDEVICE_A_PEERS), nil)
		peers.AddChild(withAllowed(peerMsg(parked(), 0), []netip.Prefix{op.Range}))
		peers.AddChild(peerMsg(parked(), unix.WGPEER_F_REMOVE_ME))
		req.AddData(peers)
		_, err = req.Execute(unix.NETLINK_GENERIC, 0)
	}
	return gone(true, explainWireGuard(err))
}

// parked is the key of a peer that no node is: no private key goes with it.
func parked() subnet.Key { return subnet.Key{} }

// delPeer removes a peer. On a device without it nothing happens, and that is success.
func (c *Conn) delPeer(k WGKey) error {
	req, err := c.wireGuard(unix.WG_CMD_SET_DEVICE, unix.NLM_F_ACK, k.Link)
	if err == nil {
		peers := nl.NewRtAttr(nested(unix.WGDEVICE_A_PEERS), nil)
		peers.AddChild(peerMsg(k.Key, unix.WGPEER_F_REMOVE_ME))
		req.AddData(peers)
		_, err = req.Execute(unix.NETLINK_GENERIC, 0)
	}
	return gone(true, explainWireGuard(err))
}

// explainWireGuard says in plain words why generic netlink refuses: without the module there is no such family.
func explainWireGuard(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w (%w)", ErrNoWireGuard, err)
	}
	return err
}
