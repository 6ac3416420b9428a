package main

import (
	"encoding/hex"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAPacketIsReadAsItWasWritten(t *testing.T) {
	for _, want := range []packet{
		{from: 40000, to: 9003, kind: chunkInit, own: 0x01020304},
		{from: 9003, to: 40000, tag: 0x01020304, kind: chunkInitAck, own: 0xfffffffe},
	} {
		got, ok := parse(want.bytes())
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(packet{})); !ok || diff != "" {
			t.Errorf("%v (-want +got):\n%s", ok, diff)
		}
	}
	if _, ok := parse(make([]byte, 31)); ok {
		t.Error("a packet without a chunk is read")
	}
}

func TestAnINITIsWhatTheRFCSays(t *testing.T) {
	// Ports, tag 0 and CRC32c; type 1, length 20, initiate tag, window, one stream each way, first number.
	const want = "9c40232b00000000"
	const chunk = "010000140102030400010000000100010102" + "0304"
	got := hex.EncodeToString(packet{from: 40000, to: 9003, kind: chunkInit, own: 0x01020304}.bytes())
	if got[:16] != want || got[24:] != chunk {
		t.Errorf("%s", got)
	}
}

func TestATargetMayStandBeforeTheFlags(t *testing.T) {
	got := flagsFirst([]string{"10.0.0.1:80", "--timeout=1s", "--protocol=sctp"})
	if diff := cmp.Diff([]string{"--timeout=1s", "--protocol=sctp", "10.0.0.1:80"}, got); diff != "" {
		t.Error(diff)
	}
}
