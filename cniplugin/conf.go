package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/weft-cni/weft/subnet/ipam"
)

// object keeps the keys that nobody here knows.
type object map[string]json.RawMessage

// netConf is what the runtime hands in. Keys that are not listed are not for us.
type netConf struct {
	CNIVersion    string          `json:"cniVersion"`
	Name          string          `json:"name"`
	Type          string          `json:"type"` // our own, under which the runtime found us
	SubnetFile    string          `json:"subnetFile"`
	DataDir       string          `json:"dataDir"`
	Delegate      object          `json:"delegate"`
	IPAM          object          `json:"ipam"`
	RuntimeConfig object          `json:"runtimeConfig"`
	PrevResult    json.RawMessage `json:"prevResult"`
	Valid         json.RawMessage `json:"cni.dev/valid-attachments"` // raw, to tell an absent list from an empty one
}

func parseConf(stdin []byte) (netConf, error) {
	c := netConf{}
	if err := json.Unmarshal(stdin, &c); err != nil {
		return c, fmt.Errorf("failed to load flannel netconf file: %w", err)
	}
	return c.withDefaults(), nil
}

// parseConfForDel takes what it can: a pod whose record is good must go away although the configuration was broken
// since it came.
func parseConfForDel(stdin []byte) (netConf, error) {
	c, err := parseConf(stdin)
	if err == nil {
		return c, nil
	}
	var least struct {
		CNIVersion string          `json:"cniVersion"`
		Name       string          `json:"name"`
		SubnetFile string          `json:"subnetFile"`
		DataDir    string          `json:"dataDir"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if json.Unmarshal(stdin, &least) != nil {
		return c, err
	}
	c = netConf{CNIVersion: least.CNIVersion, Name: least.Name, SubnetFile: least.SubnetFile, DataDir: least.DataDir, PrevResult: least.PrevResult}
	return c.withDefaults(), nil
}

func (c netConf) withDefaults() netConf {
	if c.SubnetFile == "" {
		c.SubnetFile = "/run/flannel/subnet.env"
	}
	if c.DataDir == "" {
		c.DataDir = ipam.DefaultRecords
	}
	return c
}

func (c netConf) records() ipam.Records { return ipam.Records{Dir: c.DataDir} }

// validAttachments gives the list of GC, and whether there is one. The empty list and null (which is how libcni writes
// its own empty list) say that no attachment is valid; only an absent list says nothing.
func (c netConf) validAttachments() ([]types.GCAttachment, bool, error) {
	if c.Valid == nil {
		return nil, false, nil
	}
	var list []types.GCAttachment
	if err := json.Unmarshal(c.Valid, &list); err != nil {
		return nil, false, fmt.Errorf("read cni.dev/valid-attachments: %w", err)
	}
	for _, a := range list {
		if o := (ipam.Owner{ContainerID: a.ContainerID, IfName: a.IfName}); !o.Valid() || a.IfName == "" {
			return nil, false, fmt.Errorf("read cni.dev/valid-attachments: %q is no attachment", o)
		}
	}
	return list, true, nil
}

var errNoString = errors.New("want a string")

// text reads a string value; absent is "".
func (o object) text(key string) (string, error) {
	raw, ok := o[key]
	if !ok {
		return "", nil
	}
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil || s == nil {
		return "", fmt.Errorf("read %s: %w", key, errNoString)
	}
	return *s, nil
}

// set stores a value that always marshals.
func (o object) set(key string, value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(err) // impossible: what comes here was read as JSON, or is a string, a number or a bool
	}
	o[key] = raw
}

// setDefault stores a value unless the key is there.
func (o object) setDefault(key string, value any) {
	if _, ok := o[key]; !ok {
		o.set(key, value)
	}
}
