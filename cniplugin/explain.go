package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/weft-cni/weft/subnet"
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
	if ok {
		msg = cureOf(msg, store)
	}
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

// explained is an answer of the delegate with what explain adds, and its own code.
func explained(err error, r ipam.Record) error {
	if err == nil {
		return nil
	}
	return types.NewError(codeOf(err), explain(err, r), "")
}

// cureOf adds what helps against a disk that host-local could not write to; its error has passed through its output, so
// that only the text is left of it.
func cureOf(msg string, store ipam.Store) string {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO} {
		if strings.Contains(msg, errno.Error()) {
			said := subnet.Cure(filepath.Join(store.Dir, "lock"), errno).Error()
			return msg + strings.TrimPrefix(said, errno.Error())
		}
	}
	return msg
}
