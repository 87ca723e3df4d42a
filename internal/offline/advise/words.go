package advise

import (
	"fmt"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

var units = map[algorithms.Micros]string{
	algorithms.Second: "second", 60 * algorithms.Second: "minute", 3600 * algorithms.Second: "hour", algorithms.Day: "day",
}

// newAdvice returns an Advice about p without clients.
func newAdvice(p *limiter.Policy) *Advice {
	a := &Advice{Policy: p, shape: newShape(p), Period: duration.Format(p.Limit.Period()), Field: "rate"}
	if c := p.Limit.Calendar; c != nil {
		a.Period = c.Unit
	}
	if p.Reference {
		a.Field = "requests_per_unit"
	} else if p.Limit.Kind == algorithms.Guaranteed {
		a.Field = "capacity"
	}
	return a
}

func (a *Advice) Numbers() string {
	l := a.Policy.Limit
	switch {
	case a.Policy.Reference:
		return fmt.Sprintf("requests_per_unit: %d", l.Rate)
	case l.Kind == algorithms.Guaranteed:
		return fmt.Sprintf("capacity: %d", *l.Spec().Capacity)
	case l.Kind == algorithms.LeakyBucket:
		return fmt.Sprintf("rate: %d, capacity: %d", l.Rate, l.Capacity-1)
	case l.Capacity != l.Rate:
		return fmt.Sprintf("rate: %d, capacity: %d", l.Rate, l.Capacity)
	default:
		return fmt.Sprintf("rate: %d", l.Rate)
	}
}

func (a *Advice) Candidate(n int64) string { return fmt.Sprintf("%s: %d", a.Field, n) }

// Outlier is a client that needs much more than any other.
type Outlier struct {
	*Client
	Need int64 // 0 means that no number is enough
	Next int64 // the need of the next client
}

// outlying is the least factor between the need of an Outlier and the largest need of the other clients.
const outlying = 5

// Outlier returns the client that needs much more than every other client, or nil if there is none.
func (a *Advice) Outlier() *Outlier {
	if len(a.LargestNeeds) < 2 {
		return nil
	}
	first, next := a.LargestNeeds[0], a.LargestNeeds[1]
	if next.Need == 0 || first.Need > 0 && first.Need/outlying < next.Need {
		return nil
	}
	return &Outlier{first.Client, first.Need, next.Need}
}

// Of returns the limit of candidate n as a line of a configuration. Keys that are not in the line, such as shadow_mode,
// stay as they are configured.
func (a *Advice) Of(n int64) string {
	l := a.Policy.Limit
	period := "period: " + a.Period
	if l.Calendar != nil {
		period = fmt.Sprintf("period: %s, time_zone: %s", l.Calendar.Unit, l.Calendar.Zone)
	}
	initial := ""
	if l.Spec().Initial != nil { // candidates start full, and a line without the key would keep the configured one
		initial = fmt.Sprintf(", initial: %d", n)
	}
	switch {
	case a.Policy.Reference && l.Calendar == nil && units[l.Period()] != "":
		return fmt.Sprintf("{unit: %s, requests_per_unit: %d}", units[l.Period()], n)
	case a.Policy.Reference:
		return fmt.Sprintf("{requests_per_unit: %d}", n)
	case l.Kind == algorithms.Guaranteed:
		sure := l.Spec().Minimum
		return fmt.Sprintf("{algorithm: token_bucket, rate: %d, %s, capacity: %d, guaranteed: {rate: %d, period: %s}%s}", l.Rate, period, n, sure.Units, duration.Format(sure.Period), initial)
	case l.Kind == algorithms.TokenBucket, l.Kind == algorithms.LeakyBucket, l.Kind == algorithms.FixedWindow:
		return fmt.Sprintf("{algorithm: %s, rate: %d, %s, capacity: %d%s}", l.Kind, n, period, n, initial)
	default:
		return fmt.Sprintf("{algorithm: %s, rate: %d, %s%s}", l.Kind, n, period, initial)
	}
}

func (a *Advice) OneBucket() bool {
	return a.Clients == 1 && !a.Policy.Whole && len(a.Policy.Open) == 0 && a.clients[0].Shown == ""
}
