package limiter

import (
	"fmt"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Words describes in a sentence what p allows.
func (p *Policy) Words() string {
	l := p.Limit
	switch {
	case p.Unlimited:
		return "unlimited"
	case l.Rate == 0:
		return "allows nothing"
	}
	period := duration.Format(l.Period())
	text := ""
	switch l.Kind {
	case algorithms.TokenBucket:
		text = fmt.Sprintf("token bucket: %d per %s, up to %d at once", l.Rate, period, l.Capacity)
	case algorithms.Guaranteed:
		minimum := l.Spec().Minimum
		text = fmt.Sprintf("token bucket: %s guaranteed, and a bank of up to %d that fills at %d per %s",
			fmt.Sprintf("%d per %s", minimum.Units, duration.Format(minimum.Period)), l.Capacity-minimum.Units, l.Rate, period)
	case algorithms.FixedWindow:
		text = windowWords(l, period)
	case algorithms.SlidingWindow:
		text = fmt.Sprintf("sliding window: %d in any %s, the last window weighted by how much of it is still covered", l.Rate, period)
	case algorithms.SlidingLog:
		text = fmt.Sprintf("sliding log: %d in any %s, exactly", l.Rate, period)
	case algorithms.Concurrency:
		return fmt.Sprintf("concurrency: at most %d in flight; a slot that is neither returned nor renewed is free after %s", l.Capacity, period)
	case algorithms.LeakyBucket:
		text = leakyWords(l, period, p.Extra().MaxDelay)
	default:
		text = "unknown algorithm"
	}
	if l.Initial < l.Capacity {
		text += fmt.Sprintf("; starts with %d", l.Initial)
	}
	if n, given := reserved(l); given {
		text += fmt.Sprintf("; reservations up to %d ahead", n)
	}
	if p := l.Penalty; p.After > 0 {
		text += fmt.Sprintf("; penalty: after %d denied within %s a bucket is blocked for %s", p.After, period, duration.Format(p.For))
		if p.Max > p.For {
			text += fmt.Sprintf(", twice as long each time, up to %s", duration.Format(p.Max))
		}
	}
	if l.Overdraw {
		text += "; overdraw: consumes every cost, and denies while in debt"
	}
	return text
}

// reserved returns how many units of l may be reserved ahead. given reports whether max_reserved lowers that
// number.
func reserved(l *algorithms.Limit) (n int64, given bool) {
	if !l.CanReserve() {
		return 0, false
	}
	most, err := algorithms.Compile(algorithms.Spec{
		Kind: l.Kind, Rate: l.Rate, Period: l.Period(), Capacity: &l.Capacity,
		Calendar: l.Calendar,
	})
	return l.MaxReserved, err == nil && l.MaxReserved < most.MaxReserved
}

func windowWords(l *algorithms.Limit, period string) string {
	if l.Calendar != nil {
		period = l.Calendar.Unit
	}
	text := fmt.Sprintf("fixed window: %d in each %s", l.Rate, period)
	if l.Capacity != l.Rate {
		text += fmt.Sprintf(", saved up to %d", l.Capacity)
	}
	switch start := l.Spec().Start; {
	case l.Calendar != nil:
		return text + ", by the calendar of " + l.Calendar.Zone
	case start == nil:
		return text + ", each key's windows starting at a moment of its own"
	case *start == 0:
		return text + ", starting with the clock (UTC)"
	default:
		return text + fmt.Sprintf(", starting %s after the clock's (UTC)", duration.Format(*start))
	}
}

func leakyWords(l *algorithms.Limit, period string, delay algorithms.Micros) string {
	text := fmt.Sprintf("leaky bucket: one at a time, %d per %s", l.Rate, period)
	if places := l.Capacity - 1; places > 0 {
		text += fmt.Sprintf(", a queue of %d", places)
	} else {
		text += ", no queue"
	}
	if delay > 0 {
		text += fmt.Sprintf("; held for up to %s", duration.Format(delay))
	}
	return text
}
