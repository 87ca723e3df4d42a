package histories

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// replication returns the role of s with its details, or "" if s does not answer.
func replication(s *redistest.Server) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c := s.Client()
	defer c.Close()
	return c.Info(ctx, "replication").Val()
}

func isMaster(s *redistest.Server) bool { return strings.Contains(replication(s), "role:master") }

func isReplica(s *redistest.Server) bool {
	return strings.Contains(replication(s), "role:slave") && strings.Contains(replication(s), "master_link_status:up")
}

// master returns the server that has replicas.
func master(t *testing.T, servers []*redistest.Server) (found *redistest.Server) {
	t.Helper()
	redistest.Eventually(t, "one server is the master", func() bool {
		for _, s := range servers {
			if text := replication(s); strings.Contains(text, "role:master") && !strings.Contains(text, "connected_slaves:0") {
				found = s
			}
		}
		return found != nil
	})
	return found
}
