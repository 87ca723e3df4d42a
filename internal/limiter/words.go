package limiter

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
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

// Fact is a setting of a limit in words. Name is its key in a configuration, or words if it has none.
type Fact struct {
	Name, Text string
	// Default means that the setting has the value that it has without a configuration of it.
	Default bool
	// Fresh means that a limit whose Text changes gets other buckets.
	Fresh bool
}

// Facts describes the settings of p that Words does not. The names are the same for all policies, in the same order, so
// that two of them can be compared.
func (p *Policy) Facts() []Fact {
	more := p.Extra()
	lease, weights, settle, payer := "none", "none", "none", "none"
	if l := more.Lease; l != nil {
		lease = fmt.Sprintf("up to %d for %s", l.Most, duration.Format(l.For))
	}
	if more.Weights != nil {
		weights = more.Weights.String()
	}
	if more.Settle != nil {
		settle = strings.Join(more.Settle.Words(p.Limit), "; ")
	}
	if more.Then != nil {
		payer = descriptors.Printable(more.Then.Name)
	}
	return []Fact{
		{"a bucket for each", p.bucketWords(), false, true},
		{"hash_tag", more.Slot.words(), more.Slot == Slot{}, true},
		{"shards", fmt.Sprint(max(1, len(more.Shards))), len(more.Shards) == 0, true},
		{"lease", lease, more.Lease == nil, false},
		{"weights", weights, more.Weights == nil, false},
		{"settle", settle, more.Settle == nil, false},
		{"then", payer, more.Then == nil, false},
		{"shadow_mode", onOff(p.Shadow), !p.Shadow, false},
		{"quota_mode", onOff(p.Quota), !p.Quota, false},
		{"consume", ConsumeWord(p.Alone), !p.Alone, false},
		{"on_backend_failure", p.OnFailure.Words(more.LocalShare), p.OnFailure == Deny, false},
		{"unit_name", more.Unit.String(), more.Unit == NoUnit, false},
		{"deny_body", more.DenyBody.String(), more.DenyBody == NoBody, false},
		{"replaces", ListWords(more.Replaces), len(more.Replaces) == 0, false},
		{"metadata", fmt.Sprint(more.Metadata), len(more.Metadata) == 0, false},
	}
}

// Words describes f. share is the local_share.
func (f OnFailure) Words(share float64) string {
	if f == Local {
		return fmt.Sprintf("local, a share of %g", share)
	}
	return f.String()
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// ConsumeWord returns the value of the key consume.
func ConsumeWord(alone bool) string {
	if alone {
		return "each"
	}
	return "together"
}

// ListWords joins texts of a configuration or of requests.
func ListWords(texts []string) string {
	if len(texts) == 0 {
		return "nothing"
	}
	return descriptors.PrintableList(texts, ", ")
}

// bucketWords continues the text "a bucket for each".
func (p *Policy) bucketWords() string {
	switch {
	case p.Whole:
		return "descriptor"
	case len(p.Open) == 0:
		return "limit"
	default:
		return ListWords(p.Extra().OpenKeys)
	}
}

func (s Slot) words() string {
	switch {
	case s.Value > 0:
		return fmt.Sprintf("by value %d of the key", s.Value)
	case s.Entry != "":
		return "by the value of " + descriptors.Printable(s.Entry)
	case s.Fixed > 0:
		return fmt.Sprintf("fixed, number %d", s.Fixed)
	default:
		return "none"
	}
}

// Words describes how requests reserve units of l and settle them. Each text states one fact.
func (s *SettleTerms) Words(l *algorithms.Limit) []string {
	within := duration.Format(s.TTL)
	if s.ByBucket {
		return []string{
			"a request whose descriptor states 0 hits reserves " + s.EstimateWords(),
			"one whose descriptor states more hits settles one of the newest reservations of the bucket; if none is open, all its hits are charged",
			"a reservation that nothing settles is refunded after " + within,
			fmt.Sprintf("a real cost can take the bucket down to %d; what goes beyond is lost, and counted", -l.MaxDebt),
		}
	}
	if l.Kind == algorithms.FixedWindow {
		within += " and in the same window"
	}
	return []string{
		"a request reserves " + s.EstimateWords() + s.declaredWords(),
		fmt.Sprintf("a settlement within %s refunds the unused units; later, it charges only what exceeds the reservation", within),
		"a request whose real cost is not reported costs " + s.unknownWords(),
		fmt.Sprintf("a real cost can take the bucket down to %d; what goes beyond is lost, and counted", -l.MaxDebt),
	}
}

// EstimateWords describes the estimate for a request that declares no cost.
func (s *SettleTerms) EstimateWords() string {
	if s.Learn == nil {
		return fmt.Sprintf("%d units, the estimate", max(s.Least, min(s.Estimate, s.Most)))
	}
	least := ""
	if s.Learn.Least > s.Least {
		least = fmt.Sprintf(", at least %d", s.Learn.Least)
	}
	text := fmt.Sprintf("the learned estimate (p%s of the real costs%s; %d until enough are known)",
		strconv.FormatFloat(math.Round(s.Learn.Quantile*1e6)/1e4, 'f', -1, 64), least, s.Estimate)
	if len(s.Learn.Per) > 0 {
		text += ", one for each configured value of " + descriptors.PrintableList(s.Learn.Per, " and ")
	}
	return text
}

func (s *SettleTerms) declaredWords() string {
	text := ", or its declared hits if these are more"
	if s.TrustDeclared {
		text = ", or its declared hits, even if these are fewer"
	}
	if s.Least > 0 {
		return text + fmt.Sprintf("; at least %d and at most %d", s.Least, s.Most)
	}
	return text + fmt.Sprintf("; at most %d", s.Most)
}

func (s *SettleTerms) unknownWords() string {
	switch {
	case s.Unknown >= 0:
		return fmt.Sprintf("%d units", s.Unknown)
	case s.Learn != nil:
		return fmt.Sprintf("what it reserved, but at least %d units", s.Estimate)
	default:
		return "what it reserved"
	}
}
