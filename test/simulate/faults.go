package simulate

import (
	"math/rand/v2"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// fault is a kind of fault, or of another rare event, that the runs together must have.
type fault int

// none is no fault.
const none fault = 0

// Each of these has the name that TestSimulation prints.
var (
	faultSlow          = newFault("slow link")
	faultLostCall      = newFault("call lost")
	faultLostAnswer    = newFault("answer lost")
	faultResetBefore   = newFault("connection reset before execution")
	faultResetAfter    = newFault("connection reset after execution")
	faultCut           = newFault("link cut")
	faultDown          = newFault("call of a server that is down")
	faultRestart       = newFault("server restarted")
	faultDataLost      = newFault("server restarted empty")
	faultStuck         = newFault("server stuck")
	faultRefuses       = newFault("server refuses commands")
	faultScriptsLost   = newFault("scripts flushed")
	faultServerForward = newFault("server's clock steps forward")
	faultServerBack    = newFault("server's clock steps back")
	faultCrash         = newFault("sidecar crashes")
	faultGraceful      = newFault("sidecar restarted in order")
	faultPause         = newFault("sidecar paused")
	faultSuspend       = newFault("sidecar's machine suspended")
	faultWallStep      = newFault("sidecar's wall clock steps")
	faultReload        = newFault("configuration reloaded")
	faultFailover      = newFault("replica takes over")
	faultRepeat        = newFault("request repeated under its ID")
	faultCancel        = newFault("request canceled")
	faultMigrate       = newFault("slots of a Cluster move")
	faultReplaced      = newFault("replica of a Cluster takes over")
	faultSettledTwice  = newFault("one reservation settled by several requests")
	faultForged        = newFault("id forged")
	faultPromoted      = newFault("Sentinels promote a replica")
	faultAborted       = newFault("failover of Sentinels aborted")
	faultLostMessage   = newFault("message of a Sentinel lost")
	// These are events that faults or the plan cause.
	sawBreakerOpen     = newFault("circuit breaker opened")
	sawLease           = newFault("answered from a lease")
	sawDenied          = newFault("request denied")
	sawFailed          = newFault("answered by on_backend_failure")
	sawNotTaken        = newFault("certainly not charged")
	sawReplayed        = newFault("answer repeated")
	sawPending         = newFault("outcome of an ID not known")
	sawParts           = newFault("group of limits on two servers")
	sawUnconfirmed     = newFault("charge not confirmed by the replica")
	sawGroupDenied     = newFault("group denied by one of its limits")
	sawMoved           = newFault("MOVED")
	sawAsk             = newFault("ASK")
	sawTryAgain        = newFault("TRYAGAIN")
	sawForeign         = newFault("script met a key of another master")
	sawSharded         = newFault("shard charged")
	sawOtherPolicy     = newFault("store failed, and no policy denied")
	sawLocal           = newFault("allowed by the sidecar's own bucket")
	sawReserved        = newFault("units reserved")
	sawSettledBefore   = newFault("settled before")
	sawLate            = newFault("settled too late for a refund")
	sawCredits         = newFault("paid by credits")
	sawCreditsForTwo   = newFault("credits pay for two limits")
	sawCreditsReplayed = newFault("answer repeated that names credits")
	sawCreditsDenied   = newFault("denied by a limit and its credits")
	sawCreditsNamed    = newFault("credits named beside their limit, or topped up")
	sawAdjusted        = newFault("decided by adjusted numbers")
	sawByValue         = newFault("adjustment of a value known")
	sawExpired         = newFault("adjustment expired")
	sawRaced           = newFault("operators race")
	sawUnknownChange   = newFault("outcome of a change not known")
	sawRestored        = newFault("adjustments restored into an empty server")
	sawRewritten       = newFault("changes made again that a failover lost")
	sawReportedLost    = newFault("adjustment reported as lost")
	sawReadOnly        = newFault("command to an old master, now a replica")
	sawKept            = newFault("confirmed charge checked after a failover")
	sawStaleName       = newFault("Sentinel names the old master after a failover")
	sawRetry           = newFault("retry time compared with the server")
	sawReset           = newFault("bucket reset")
	sawSlot            = newFault("slot taken")
	sawRenewed         = newFault("slot renewed")
	sawRoomExpired     = newFault("slot expired during its request")
	sawNotRevived      = newFault("returned slot not renewed")
	sawMeter           = newFault("settled by its bucket")
	sawHeader          = newFault("settled by a header")
	sawOverdrawn       = newFault("denied, and charged nevertheless")
	sawBlocked         = newFault("blocked by a penalty")
	sawShadowed        = newFault("denied only in shadow mode")
	sawOutside         = newFault("windows of a calendar sent again")
	sawEdge            = newFault("charged before and after the end of a long window")
	sawQuotasDeny      = newFault("denied by its limits in quota mode")
	sawQuotaSpared     = newFault("allowed, though a limit in quota mode denies")
)

var faultNames = []string{none: "none"}

func newFault(name string) fault {
	faultNames = append(faultNames, name)
	return fault(len(faultNames) - 1)
}

// Counts has how often each fault has happened.
type Counts []int

func (w *world) repair() {
	w.noMoreFaults = true
	for i := range w.links {
		w.links[i].cutUntil, w.links[i].slowUntil = 0, 0
	}
	for _, s := range w.servers {
		s.up, s.refuses, s.stuckUntil = true, "", 0
	}
	w.note("all faults end")
}

func (w *world) fault(rng *rand.Rand) {
	span := time.Duration(rng.Int64N(1 + rng.Int64N(int64(150*time.Millisecond))))
	if rng.IntN(4) == 0 { // long enough to open circuit breakers
		span += 150 * time.Millisecond
	}
	if w.noMoreFaults {
		return
	}
	s, i := w.servers[rng.IntN(len(w.servers))], rng.IntN(len(w.processes))
	kind := rng.IntN(18)
	switch {
	case w.layout != nil && kind >= 14:
		kind = 18
	case w.watched != nil && (kind == 3 || kind == 4 || kind >= 14):
		kind = 19
	}
	switch kind {
	case 0, 1:
		w.note("link of %s cut for %v", w.processes[i].name, span)
		w.links[i].cutUntil = w.now + int64(span)
	case 2:
		w.note("link of %s slow for %v", w.processes[i].name, span)
		w.links[i].slowUntil = w.now + int64(span)
	case 3, 4:
		w.restart(s, span)
	case 5:
		w.note("server stuck for %v", span)
		w.seen(faultStuck)
		s.stuckUntil = w.now + int64(span)
	case 6:
		s.refuses = []string{"LOADING Redis is loading the dataset in memory", "OOM command not allowed", "BUSY Redis is busy", "READONLY You can't write against a read only replica."}[rng.IntN(4)]
		w.note("server refuses for %v: %s", span, s.refuses)
		w.seen(faultRefuses)
		w.afterPlain(span, nil, func() { s.refuses = "" })
	case 7:
		w.note("scripts flushed")
		w.seen(faultScriptsLost)
		clear(s.scripts)
	case 8:
		w.step(s, span)
	case 9, 10:
		w.crash(i)
	case 11:
		w.graceful(i)
	case 12:
		w.pause(w.processes[i], span, rng.IntN(2) == 0)
	case 13:
		w.note("%s: wall clock steps by %v", w.processes[i].name, span)
		w.seen(faultWallStep)
		w.processes[i].wallAhead += 2*span - 200*time.Millisecond
	case 14:
		w.stall(s, span)
		if len(s.replicas) > 0 && rng.IntN(2) == 0 { // this failover may lose charges that no replica has confirmed
			w.afterPlain(span/2, nil, func() {
				if !w.noMoreFaults {
					w.restart(s, span/4)
				}
			})
		}
	case 18:
		for range 1 + rng.IntN(3) {
			w.migrate(rng, w.servers[rng.IntN(len(w.servers))])
		}
	case 19:
		w.fail(rng, span/2)
	default:
		w.snapshot = compiled[rng.IntN(len(compiled))]
		w.note("reload")
		w.seen(faultReload)
		for _, p := range w.processes {
			w.after(time.Duration(rng.Int64N(int64(10*time.Millisecond))), p, func() { p.reload(w.snapshot) })
		}
	}
}

// stall stops the replication of s to a random replica, and to those after it, for span.
func (w *world) stall(s *server, span time.Duration) {
	for i := w.rng.IntN(max(1, len(s.replicas))); i < len(s.replicas); i++ {
		w.note("%s: replication to its replica %d stands still for %v", s.name, i, span)
		s.replicas[i].currentAt = max(s.replicas[i].currentAt, w.now+int64(span))
	}
}

// restart stops a server for span. If it has replicas, one of them takes over. Charges that this one does not have
// yet are lost. Otherwise the same server starts again, without its data if w.mayLoseData is set.
func (w *world) restart(s *server, span time.Duration) {
	if w.layout != nil && len(s.replicas) > 0 {
		w.replace(s, span)
		return
	}
	w.seen(faultRestart)
	s.up = false
	if len(s.replicas) > 0 { // if all replicas confirm each charge (--redis-wait-replicas), a failover loses no confirmed charge
		w.seen(faultFailover)
		w.note("%s: a replica takes over, after %v", s.name, span)
		s.epoch++
		w.takeOver(s, s)
		w.afterPlain(span, nil, func() { s.up = true })
		return
	}
	clear(s.scripts)
	if w.mayLoseData {
		w.seen(faultDataLost)
		clear(s.keys)
		w.judge.losses++
	}
	w.note("server down for %v, data lost: %v", span, w.mayLoseData)
	w.afterPlain(span, nil, func() { s.up = true })
}

func (w *world) step(s *server, by time.Duration) {
	f := faultServerForward
	if w.clockMayStepBack {
		f, by = faultServerBack, -by
		w.judge.clockSteppedBack = true
	}
	w.judge.clockStepped = true
	w.seen(f)
	w.note("server's clock steps by %v", by)
	for _, other := range w.servers {
		if other == s || w.layout != nil || w.watched != nil {
			other.clock += algorithms.Micros(by.Microseconds())
		}
	}
}

func (w *world) crash(i int) {
	w.seen(faultCrash)
	p := w.processes[i]
	w.note("%s crashes", p.name)
	p.crashed = true
	w.judge.unclean = true
	w.boots++
	w.processes[i] = w.start(p.name[:1] + strings.Repeat("'", w.boots))
}

func (w *world) graceful(i int) {
	w.seen(faultGraceful)
	p := w.processes[i]
	w.note("%s ends", p.name)
	p.closing = true
	w.after(1500*time.Millisecond, p, p.cache.Close)
	w.boots++
	w.processes[i] = w.start(p.name[:1] + strings.Repeat("'", w.boots))
}

// pause stops a process for span. runs reports whether its machine, and so its monotonic clock, runs meanwhile.
func (w *world) pause(p *process, span time.Duration, runs bool) {
	if p.pausedUntil > w.now {
		return
	}
	p.pausedUntil = w.now + int64(span)
	if runs {
		w.seen(faultPause)
		w.note("%s paused for %v", p.name, span)
		return
	}
	w.seen(faultSuspend)
	w.note("%s suspended for %v", p.name, span)
	p.suspended += span // a paused process reads no clock, so the whole span can be added now
	p.wallAhead += span
}
