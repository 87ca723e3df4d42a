package redis

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Severity is the severity of a Finding.
type Severity string

// The severities. A Problem means that limits cannot be enforced, a Warning that they may not be enforced.
// Advice names a setting with which fewer requests are answered by on_backend_failure; only doctor shows it.
const (
	Fine    Severity = "ok"
	Advice  Severity = "advice"
	Warning Severity = "warning"
	Problem Severity = "problem"
)

// Fit reports whether limits can be enforced in spite of a finding of this severity.
func (s Severity) Fit() bool { return s == Fine || s == Advice }

// Finding is one result of an examination of Redis.
type Finding struct {
	Server   string   `json:"server"`
	Severity Severity `json:"severity"`
	// Check names the subject of the check: connection, clock, version, eviction, expiry, role, script, permissions,
	// adjustments, latency, cluster or coverage.
	Check string `json:"check"`
	Text  string `json:"text"`
}

// Examine checks every master: whether the master is reachable and can run the script, whether the user has
// all permissions that limits need, and whether the settings of the master suit limits. Examine writes one
// key to each master, and removes it. timeout is the time that a call may take when limits are decided; 0
// means the Timeout of the Config.
func (s *Store) Examine(ctx context.Context, timeout time.Duration) []Finding {
	timeout = cmp.Or(timeout, s.config.Timeout)
	all, err := eachMaster(ctx, s, func(ctx context.Context, server string, client *goredis.Client) ([]Finding, error) {
		return s.examine(ctx, server, client, timeout), nil
	})
	if err != nil {
		all = append(all, Finding{s.name, Problem, "connection", s.explain(err)})
	}
	if s.cluster != nil {
		all = append(all, s.examineCluster(ctx)...)
	}
	return all
}

func (s *Store) examine(ctx context.Context, server string, client *goredis.Client, timeout time.Duration) (all []Finding) {
	found := func(severity Severity, check, format string, args ...any) {
		all = append(all, Finding{server, severity, check, fmt.Sprintf(format, args...)})
	}
	own := client
	client = withTimeout(client, proveTimeout) // a longer timeout, so that the latency of a slow server can be measured
	before := time.Now()
	there, err := client.Time(ctx).Result()
	if err != nil {
		found(Problem, "connection", "%s", s.explain(err))
		return all
	}
	took := time.Since(before)
	found(Fine, "connection", "answers in %v, including the connection", took.Round(10*time.Microsecond))
	all = append(all, checkClock(server, there, before, took)...)
	info, err := client.Info(ctx).Result()
	if err != nil {
		found(Warning, "version", "INFO cannot be read (%s); version and eviction were not checked", advice(err, s.location.form))
	} else {
		values := fields(info)
		all = append(all, checkInfo(server, values)...)
		all = append(all, checkExpiry(server, values, timeout)...)
	}
	probe := probe()
	if s.cluster != nil { // any slot of this master
		probe.Slot, _ = s.slotAt(ctx, own)
	}
	var d [1]backend.Decision
	n := s.node(client.Options(), func() {})
	defer n.wire.close()
	n.Take(ctx, []backend.Charge{probe}, d[:])
	if d[0].Err != nil {
		found(Problem, "script", "%s", advice(d[0].Err, s.location.form))
		return all
	}
	found(Fine, "script", "runs, and may write keys that start with %q", s.config.KeyPrefix)
	key := s.keys.name(&probe)
	ofLedger, ofLimits := refused(ctx, client, key, ledgerCommands), limitCommands
	if s.cluster != nil {
		ofLimits += clusterCommands
	}
	if refused := refused(ctx, client, key, ofLimits+", del KEY"); len(refused) > 0 {
		found(Problem, "permissions", "the user may not run %s, which some limits need; the user needs %s", strings.Join(refused, ", "), permissions)
	} else {
		found(Fine, "permissions", "the user has all permissions that limits of every kind need")
	}
	if len(ofLedger) > 0 {
		found(Warning, "adjustments", "the user may not run %s: limits work, but operators cannot adjust them; the user needs %s", strings.Join(ofLedger, ", "), ledgerPermissions)
	} else {
		found(Fine, "adjustments", "the user has all permissions that adjustments need")
	}
	severity, text := judgeLatency(s.measure(ctx, client, probe), timeout)
	found(severity, "latency", "%s", text)
	return all
}

// maxClockOffset is the largest acceptable difference between the clocks of this machine and of Redis.
const maxClockOffset = 5 * time.Second

// checkClock compares the clock of a server with the clock of this machine. serverTime is the answer of the server to a
// call. start is the time at which the call began, by the clock of this machine, and took is its duration.
func checkClock(server string, serverTime, start time.Time, took time.Duration) []Finding {
	off := serverTime.Sub(start.Add(took / 2))
	if off.Abs() <= maxClockOffset {
		return nil
	}
	direction := "ahead of"
	if off < 0 {
		direction = "behind"
	}
	return []Finding{{server, Warning, "clock", fmt.Sprintf("is %v %s this machine's, and limits use the server's clock; synchronize both with NTP", off.Abs().Round(time.Second), direction)}}
}

// ExamineClocks checks only the clocks, and returns a finding only for a wrong one. It ignores servers that do not
// answer.
func (s *Store) ExamineClocks(ctx context.Context) []Finding {
	all, _ := eachMaster(ctx, s, func(ctx context.Context, server string, client *goredis.Client) ([]Finding, error) {
		before := time.Now()
		there, err := client.Time(ctx).Result()
		if err != nil {
			return nil, err
		}
		return checkClock(server, there, before, time.Since(before)), nil
	})
	return all
}

// Commands that a plain charge of a token bucket does not need: those of sliding logs (lists) and of concurrency limits
// (sorted sets), those for groups over several slots and for slots that move, and those of a Ledger. KEY has a string:
// then every command for lists, sorted sets and hashes fails, and changes nothing.
const (
	limitCommands = "get KEY, llen KEY, lindex KEY 0, rpush KEY 0, lpush KEY 0, lset KEY 0 0, lpop KEY, ltrim KEY 0 -1, " +
		"zadd KEY 0 0, zrem KEY 0, zrange KEY 0 -1, zrangebyscore KEY 0 0, zremrangebyscore KEY 0 0, zscore KEY 0, pexpire KEY 1000"
	clusterCommands = ", set KEY 0 px 1000 nx, asking" // asking applies to the next command
	ledgerCommands  = "hmget KEY f, hscan KEY 0 count 1, hlen KEY, hset KEY f 0, hdel KEY f, lrange KEY 0 0, lpush KEY 0, ltrim KEY 0 0"
)

// refused returns the names of those of the commands that the user may not run.
func refused(ctx context.Context, client *goredis.Client, key, commands string) (names []string) {
	cmds, _ := client.Pipelined(ctx, func(pipe goredis.Pipeliner) error { // each command has its own error
		for command := range strings.SplitSeq(commands, ", ") {
			var args []any
			for _, word := range strings.Fields(command) {
				if word == "KEY" {
					word = key
				}
				args = append(args, word)
			}
			pipe.Do(ctx, args...)
		}
		return nil
	})
	for _, cmd := range cmds {
		if isForbidden(cmd.Err()) {
			names = append(names, cmd.Name())
		}
	}
	return names
}

// slotAt returns the Charge.Slot of a slot that client's server serves, if there is one.
func (s *Store) slotAt(ctx context.Context, client *goredis.Client) (slot uint64, has bool) {
	for _, tag := range tags() {
		key := s.config.KeyPrefix + "{" + strconv.FormatUint(tag, 36) + "}"
		if have, err := s.cluster.client.MasterForKey(ctx, key); err == nil && have == client {
			return tag, true
		}
	}
	return 0, false
}

func checkInfo(server string, info map[string]string) (all []Finding) {
	found := func(severity Severity, check, format string, args ...any) {
		all = append(all, Finding{server, severity, check, fmt.Sprintf(format, args...)})
	}
	name, version := "Redis", info["redis_version"]
	if v := info["valkey_version"]; v != "" {
		name, version = "Valkey", v
	}
	var major, minor int
	_, _ = fmt.Sscanf(info["redis_version"], "%d.%d", &major, &minor) // if the text is not a version, major and minor stay 0
	switch {
	case major < 6 || major == 6 && minor < 2:
		found(Problem, "version", "%s %s is too old; use 6.2 or later", name, version)
	case major < 7:
		found(Fine, "version", "%s %s (no script flags: out of memory is found at the first write, before anything is written)", name, version)
	default:
		found(Fine, "version", "%s %s", name, version)
	}
	switch policy := info["maxmemory_policy"]; {
	case policy == "" || policy == "noeviction":
		found(Fine, "eviction", "keys in use are never evicted")
	case info["maxmemory"] == "0":
		found(Warning, "eviction", "maxmemory-policy is %s: if maxmemory is set later, buckets could be evicted, and each would be full again; set maxmemory-policy to noeviction", policy)
	default:
		found(Problem, "eviction", "maxmemory-policy is %s: under memory pressure buckets are evicted, and each is full again, so that more than the limit is admitted; set maxmemory-policy to noeviction", policy)
	}
	if info["role"] == "slave" {
		found(Problem, "role", "is a replica; point the URL at the master, at Sentinels or at the cluster")
	}
	return all
}

// goodHz is a value of Redis's setting hz with which the removal of expired keys takes at most 2.5 ms at a
// time. Redis's own documentation advises against larger values.
const goodHz = 100

// checkExpiry compares the timeout of calls with the longest time for which Redis answers nothing because it removes
// expired keys. Redis removes expired keys hz times a second, and uses at most a quarter of the time for it
// (activeExpireCycle in expire.c, with the default active-expire-effort).
func checkExpiry(server string, info map[string]string, timeout time.Duration) []Finding {
	hz, err := strconv.Atoi(info["configured_hz"])
	if err != nil || hz < 1 {
		return nil // the server has no such setting
	}
	pause := time.Second / 4 / time.Duration(hz)
	if hz >= goodHz || pause < timeout {
		return []Finding{{server, Fine, "expiry", fmt.Sprintf("hz is %d: expired keys are removed for at most %v at a time", hz, pause)}}
	}
	return []Finding{{server, Advice, "expiry", fmt.Sprintf(
		"hz is %d: while thousands of keys expire each second, Redis removes them for up to %v at a time, and does not answer during that time; --backend-timeout is %v, so some requests are answered by on_backend_failure; set hz to %d",
		hz, pause, timeout, goodHz)}}
}

func (s *Store) examineCluster(ctx context.Context) []Finding {
	text, err := s.cluster.client.ClusterInfo(ctx).Result()
	if err != nil {
		return []Finding{{s.name, Warning, "cluster", "CLUSTER INFO cannot be read: " + advice(err, s.location.form)}}
	}
	info := fields(text)
	if info["cluster_state"] != "ok" || info["cluster_slots_ok"] != strconv.Itoa(slots) {
		return []Finding{{s.name, Problem, "cluster", fmt.Sprintf("state %s, %s of %d slots are served", info["cluster_state"], info["cluster_slots_ok"], slots)}}
	}
	all := []Finding{{s.name, Fine, "cluster", "all slots are served by " + info["cluster_size"] + " masters"}}
	setting, err := s.cluster.client.ConfigGet(ctx, "cluster-require-full-coverage").Result()
	if err == nil && setting["cluster-require-full-coverage"] == "yes" { // an error means that the user may not read the setting; that is no problem
		all = append(all, Finding{s.name, Warning, "coverage", "cluster-require-full-coverage is yes: while one master fails, the other masters refuse requests too; set it to no"})
	}
	return all
}

func fields(info string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[name] = value
		}
	}
	return m
}
