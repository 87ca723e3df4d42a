package redis

import (
	"errors"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// The first answer to a request with an ID fails, because no replica has confirmed its charge in time. If the
// request is repeated, the recorded answer must wait for the replica too, because a failover would lose the
// charge and the record.
//
// The test runs on Valkey. Its WAIT is that of Redis 7.2, which waits only for the writes of its own
// connection.
func TestARepeatedAnswerIsConfirmed(t *testing.T) {
	t.Parallel()
	binary := tooltest.Path(t, "valkey-server-libc")
	master := redistest.StartBinary(t, binary, nil)
	replica := redistest.StartReplica(t, master)
	open := func(timeout time.Duration) *Store {
		return open(t, Config{URL: "redis://" + master.Addr, Timeout: timeout, WaitReplicas: 1})
	}
	short, long := open(time.Second), open(10*time.Second)
	take := func(s *Store, id byte) backend.Decision {
		once := &backend.IdempotencyKey{ID: [16]byte{id}, Lifetime: algorithms.Day}
		return takeAll(s, []backend.Charge{{Key: []byte("k"), Limit: limitOf(10), Terms: algorithms.Charge{Cost: 1}, IdempotencyKey: once}})[0]
	}
	if d := take(long, 1); !d.Allowed { // from now on the server knows the script
		t.Fatalf("got %+v; want allowed", d)
	}
	replica.Pause()
	for _, attempt := range []string{"the first attempt", "the second attempt"} {
		if d := take(short, 2); d.Allowed || !errors.Is(d.Err, backend.ErrUnavailable) || errors.Is(d.Err, backend.ErrNotTaken) {
			t.Errorf("%s, while the replica is paused: %+v; want an ErrUnavailable that is not an ErrNotTaken", attempt, d)
		}
	}
	other := open(time.Second) // a new connection, so WAIT has no write to wait for
	if d := take(other, 2); d.Allowed || d.Err == nil {
		t.Errorf("by another sidecar, while the replica is paused: %+v; want denied and an error", d)
	}
	replica.Resume()
	if d := take(long, 2); d.Err != nil || !d.Allowed || !d.Replayed || d.Remaining != 8 {
		t.Errorf("when the replica has resumed: %+v; want no error, allowed, replayed and 8 remaining", d)
	}
}
