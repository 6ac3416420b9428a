package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/weft-cni/weft/subnet/ipam"
)

// explain adds to an answer of the delegate what an operator asks next. On a full range that is how many addresses are
// taken, since when, and who gives them back.
func explain(err error, r ipam.Record) string {
	msg := err.Error()
	if strings.Contains(msg, "already has an IP address different from") {
		return msg + "; the node was given another range: the agent takes the old address off once no pod of that range lives"
	}
	store, ok := r.Store()
	if !ok || !strings.Contains(msg, "no IP addresses available") {
		return msg
	}
	all, listErr := store.List()
	if listErr != nil || len(all) == 0 {
		return msg
	}
	oldest, broken := all[0], 0
	for _, r := range all {
		if r.ModTime.Before(oldest.ModTime) {
			oldest = r
		}
		if r.Broken {
			broken++
		}
	}
	return fmt.Sprintf("%s; %d addresses are reserved in %s, %d of them by files that name no owner, the oldest, %s, since %s by %s; "+
		"the agent frees what no living pod holds: see its log, or `flanneld doctor`",
		msg, len(all), store.Dir, broken, oldest.Addr, oldest.ModTime.UTC().Format(time.RFC3339), oldest.Owner)
}
