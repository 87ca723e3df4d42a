package limiter

import (
	"fmt"
	"math"
	"strconv"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

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
