package main

import (
	"bytes"
	"encoding/json"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/weft-cni/weft/subnet/ipam"
)

// stage is what a delegate's address management is told in addition when this plugin has to do something between the two:
// then it is this plugin, which runs the real one. Nothing of it is recorded, and DEL goes without. It holds the address
// of a pod before any interface has it, when there are policies; and it keeps IPv6 gateways from the delegate, which makes
// nothing of them but a wait (see bare).
type stage struct {
	Type       string `json:"type"` // of the real one
	SubnetFile string `json:"subnetFile"`
	Free       bool   `json:"free,omitempty"` // there are no policies
	Bare       bool   `json:"bare,omitempty"`
	Answer     string `json:"answer,omitempty"` // where the answer to an errand comes; "" without one
}

const stageKey = "weft"

// into puts the stage into the configuration of a delegate that has its address managed. Self is our own type.
func (s stage) into(raw []byte, self, path string) []byte {
	if _, err := findPlugin(self, path); s.Free && !s.Bare || err != nil {
		return raw
	}
	conf, management := object{}, object{}
	if json.Unmarshal(raw, &conf) != nil || json.Unmarshal(conf["ipam"], &management) != nil {
		return raw
	}
	var err error
	if s.Type, err = management.text("type"); err != nil || s.Type == "" {
		return raw
	}
	management.set(stageKey, s)
	management.set("type", self)
	conf.set("ipam", management)
	out, err := json.Marshal(conf)
	if err != nil {
		return raw
	}
	return out
}

// unstage takes the stage out again; it is false in a configuration without.
func unstage(raw []byte) (stage, []byte, bool) {
	if !bytes.Contains(raw, []byte(`"`+stageKey+`"`)) {
		return stage{}, raw, false
	}
	var s stage
	conf, management := object{}, object{}
	if json.Unmarshal(raw, &conf) != nil || json.Unmarshal(conf["ipam"], &management) != nil ||
		json.Unmarshal(management[stageKey], &s) != nil || s.Type == "" {
		return stage{}, raw, false
	}
	delete(management, stageKey)
	management.set("type", s.Type)
	conf.set("ipam", management)
	out, err := json.Marshal(conf)
	return s, out, err == nil
}

// staged is a verb that may be called as the address management of our own delegate.
func (p plugin) staged(verb func(*skel.CmdArgs) error, answer func(*skel.CmdArgs, stage, []byte) ([]byte, error)) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		s, conf, ok := unstage(args.StdinData)
		if !ok {
			return verb(args)
		}
		out, err := answer(args, s, conf)
		if err != nil {
			return err
		}
		_, err = p.stdout.Write(out)
		return err
	}
}

// stagedAdd hands on the answer to the errand, or runs the real one where there is none. In the delegate's group, so that it
// ends with it.
func (p plugin) stagedAdd(args *skel.CmdArgs, s stage, conf []byte) ([]byte, error) {
	if s.Answer != "" {
		return fetch(s.Answer)
	}
	return p.manage(args, s, conf, true)
}

// stagedDel is what a delegate asks for that could not finish.
func (p plugin) stagedDel(args *skel.CmdArgs, s stage, conf []byte) ([]byte, error) {
	return p.run(p.ctx, call{kind: s.Type, path: args.Path, conf: conf, limit: p.runLimit, inGroup: true})
}

// manage runs the real address management and does what comes before an interface has the addresses.
func (p plugin) manage(args *skel.CmdArgs, s stage, conf []byte, inGroup bool) ([]byte, error) {
	out, err := p.run(p.ctx, call{kind: s.Type, path: args.Path, conf: conf, limit: p.runLimit, inGroup: inGroup})
	if err != nil {
		return nil, err
	}
	if addrs := ipam.ResultAddrs(out); len(addrs) > 0 {
		if err := s.before(args, conf, addrs); err != nil {
			return nil, err // the delegate releases the address
		}
	}
	if s.Bare {
		out = withoutGateways(out)
	}
	return out, nil
}

// before is what comes before an interface has the addresses.
func (s stage) before(args *skel.CmdArgs, conf []byte, addrs []netip.Addr) error {
	if !s.Free {
		g, err := gateOf(args, s.SubnetFile)
		if err == nil {
			err = g.hold(addrs)
		}
		if err != nil {
			return err
		}
	}
	rec, err := ipam.ParseRecord(conf)
	if err != nil {
		return err
	}
	if b := bridgeOf(rec); b.name != "" {
		return b.forget(addrs)
	}
	return nil
}
