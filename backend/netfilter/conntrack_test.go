package netfilter

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAKernelThatDoesNotShowConnectionsIsToldWhatItLacks(t *testing.T) {
	for errno, want := range map[error]string{
		unix.EINVAL:  "list tracked connections: invalid argument: the kernel does not show them: modprobe nf_conntrack_netlink",
		unix.ENOBUFS: "list tracked connections: no buffer space available",
	} {
		if err := connectionsError(errno); err.Error() != want || !errors.Is(err, errno) {
			t.Errorf("%v; want %s", err, want)
		}
	}
	if err := connectionsError(netlinkError([]byte{0xff, 0xff, 0xff, 0xff})); !strings.Contains(err.Error(), "NET_ADMIN is missing") {
		t.Error(err)
	}
}
