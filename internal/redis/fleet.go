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
	now, err := s.fleetTime(ctx)
	if err != nil {
		return err
	}
	if _, err := s.fleetCall(ctx, "hset", s.fleetKey(), id, strconv.FormatInt(now.UnixMilli(), 10)+" "+report); err != nil {
		return err
	}
	_, err = s.fleetCall(ctx, "pexpire", s.fleetKey(), fleetLifetime.Milliseconds())
	return err
}

// Fleet returns at most maxMembers reports, in no particular order. It removes reports that it cannot read or that are
// older than reportExpiry. If that fails, it returns the reports and the error. The Redis user needs TIME, HSCAN and
// HDEL.
func (s *Store) Fleet(ctx context.Context) (all []Member, err error) {
	now, err := s.fleetTime(ctx)
	if err != nil {
		return nil, err
	}
	var expired []any
	for cursor := "0"; ; {
		page, err := s.fleetCall(ctx, "hscan", s.fleetKey(), cursor, "count", 200)
		if err != nil {
			return nil, err
		}
		if len(page.elements) != 2 {
			return nil, errors.New("redis: invalid reply to HSCAN")
		}
		fields := page.elements[1].texts()
		for i := 0; i+1 < len(fields); i += 2 {
			m, ok := parseMember(fields[i], fields[i+1], now)
			switch {
			case !ok || m.Age > reportExpiry:
				expired = append(expired, fields[i])
			case len(all) < maxMembers:
				all = append(all, m)
			}
		}
		if cursor = page.at(0); cursor == "0" || len(all)+len(expired) >= maxMembers {
			break
		}
	}
	if len(expired) > 0 {
		_, err = s.fleetCall(ctx, append([]any{"hdel", s.fleetKey()}, expired...)...)
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

// fleetTime returns the time of the server that has the hash. In a Cluster each server has its own clock.
func (s *Store) fleetTime(ctx context.Context) (time.Time, error) {
	r, err := s.fleetCall(ctx, "time")
	if err != nil {
		return time.Time{}, err
	}
	return timeOf(r.elements)
}

// timeOf reads the reply to TIME: seconds and microseconds.
func timeOf(parts []reply) (time.Time, error) {
	var numbers [2]int64
	for i := range numbers {
		if i >= len(parts) {
			return time.Time{}, errors.New("redis: invalid reply to TIME")
		}
		n, err := strconv.ParseInt(parts[i].text, 10, 54)
		if err != nil {
			return time.Time{}, err
		}
		numbers[i] = n
	}
	return time.Unix(numbers[0], numbers[1]*1000), nil
}

// fleetCall sends a command to the server that has the hash.
func (s *Store) fleetCall(ctx context.Context, command ...any) (*reply, error) {
	replies, err := s.call(ctx, s.fleetKey(), command)
	if err != nil {
		return nil, fleetError(command[0], err)
	}
	return &replies[0], nil
}

func fleetError(command any, err error) error {
	switch {
	case err == nil:
		return nil
	case isForbidden(err):
		return fmt.Errorf("%s: %w", strings.ToUpper(fmt.Sprint(command)), ErrNotPermitted)
	default:
		return unavailable(err)
	}
}
