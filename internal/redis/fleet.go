package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// All processes that share a Redis report to each other in one hash. The hash has a field for each process,
// with the time of the report by the server's clock, and the report. Limits never depend on this hash.
const (
	// fleetKey is the end of the key's name, after the prefix and "{}". In the name of a bucket, a digit
	// follows there, so the hash and a bucket never have the same name.
	fleetKey = "fleet"
	// maxReport is the largest size of a report and its ID together, in bytes. maxMembers is the largest number of
	// reports that Fleet returns.
	maxReport, maxMembers = 1024, 2000
	// fleetLifetime is the lifetime of the hash after the last report.
	fleetLifetime = time.Hour
	// reportExpiry is the age at which a report that is not renewed is removed.
	reportExpiry = 10 * time.Minute
)

// Member is a process that has reported.
type Member struct {
	ID string
	// Age is the age of the report, by the server's clock.
	Age    time.Duration
	Report string
}

// ErrNotPermitted means that the Redis user lacks the permission for a command that Report or Fleet needs.
var ErrNotPermitted = errors.New("the Redis user may not run it")

// Report stores the report of the process with this id. It replaces the previous report of that process. id and
// report must not exceed maxReport bytes together. The Redis user needs TIME, HSET and PEXPIRE; without one of
// these permissions the error is ErrNotPermitted.
func (s *Store) Report(ctx context.Context, id, report string) error {
	if len(id)+len(report) > maxReport {
		return fmt.Errorf("the report has %d bytes; the maximum is %d", len(id)+len(report), maxReport)
	}
	key := s.fleetKey()
	now, err := s.timeAt(ctx, key)
	if err != nil {
		return s.fleetError("TIME", err)
	}
	if err := s.client.HSet(ctx, key, id, strconv.FormatInt(now.UnixMilli(), 10)+" "+report).Err(); err != nil {
		return s.fleetError("HSET", err)
	}
	return s.fleetError("PEXPIRE", s.client.PExpire(ctx, key, fleetLifetime).Err())
}

// Fleet returns at most maxMembers reports, in no particular order. It removes reports that it cannot read or that are
// older than reportExpiry. If that fails, it returns the reports and the error. The Redis user needs TIME, HSCAN and
// HDEL.
func (s *Store) Fleet(ctx context.Context) (all []Member, err error) {
	key := s.fleetKey()
	now, err := s.timeAt(ctx, key)
	if err != nil {
		return nil, s.fleetError("TIME", err)
	}
	var expired []string
	for cursor := uint64(0); ; {
		fields, next, err := s.client.HScan(ctx, key, cursor, "", 200).Result()
		if err != nil {
			return nil, s.fleetError("HSCAN", err)
		}
		for i := 0; i+1 < len(fields); i += 2 {
			m, ok := parseMember(fields[i], fields[i+1], now)
			switch {
			case !ok || m.Age > reportExpiry:
				expired = append(expired, fields[i])
			case len(all) < maxMembers:
				all = append(all, m)
			}
		}
		if cursor = next; cursor == 0 || len(all)+len(expired) >= maxMembers {
			break
		}
	}
	if len(expired) > 0 {
		err = s.fleetError("HDEL", s.client.HDel(ctx, key, expired...).Err())
	}
	return all, err
}

// parseMember parses a field of the hash. ok is false if the field does not have the form that Report writes, or is too
// large. If the clock stepped back, a negative age becomes 0.
func parseMember(id, value string, now time.Time) (m Member, ok bool) {
	at, report, found := strings.Cut(value, " ")
	ms, err := strconv.ParseInt(at, 10, 64)
	if !found || err != nil || len(id)+len(report) > maxReport {
		return m, false
	}
	return Member{ID: id, Age: max(0, now.Sub(time.UnixMilli(ms))), Report: report}, true
}

func (s *Store) fleetKey() string { return s.config.KeyPrefix + "{}" + fleetKey }

// timeAt returns the time of the server that has key. In a Cluster each server has its own clock.
func (s *Store) timeAt(ctx context.Context, key string) (time.Time, error) {
	if s.cluster == nil {
		return s.client.Time(ctx).Result()
	}
	client, err := s.cluster.client.MasterForKey(ctx, key)
	if err != nil {
		return time.Time{}, err
	}
	return client.Time(ctx).Result()
}

func (s *Store) fleetError(command string, err error) error {
	switch {
	case err == nil:
		return nil
	case isForbidden(err):
		return fmt.Errorf("%s: %w", command, ErrNotPermitted)
	default:
		return unavailable(err)
	}
}
