package limiter

import (
	"fmt"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

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
	return []Fact{
		{"a bucket for each", p.bucketWords(), false, true},
		{"hash_tag", more.Slot.words(), more.Slot == Slot{}, true},
		{"shards", fmt.Sprint(max(1, len(more.Shards))), len(more.Shards) == 0, true},
		{"lease", more.leaseWords(), more.Lease == nil, false},
		{"weights", more.weightWords(), more.Weights == nil, false},
		{"settle", p.settleWords(), more.Settle == nil, false},
		{"then", more.payerWords(), more.Then == nil, false},
		{"shadow_mode", onOff(p.Shadow), !p.Shadow, false},
		{"quota_mode", onOff(p.Quota), !p.Quota, false},
		{"consume", ConsumeWord(p.Alone), !p.Alone, false},
		{"on_backend_failure", p.failureWords(), p.OnFailure == Deny, false},
		{"unit_name", more.Unit.String(), more.Unit == NoUnit, false},
		{"deny_body", more.DenyBody.String(), more.DenyBody == NoBody, false},
		{"replaces", ListWords(more.Replaces), len(more.Replaces) == 0, false},
		{"metadata", fmt.Sprint(more.Metadata), len(more.Metadata) == 0, false},
	}
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
	shown := make([]string, len(texts))
	for i, text := range texts {
		shown[i] = descriptors.Printable(text)
	}
	return strings.Join(shown, ", ")
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

func (e *Extras) leaseWords() string {
	if e.Lease == nil {
		return "none"
	}
	return fmt.Sprintf("up to %d for %s", e.Lease.Most, duration.Format(e.Lease.For))
}

func (e *Extras) weightWords() string {
	if e.Weights == nil {
		return "none"
	}
	return e.Weights.String()
}

func (p *Policy) settleWords() string {
	if s := p.Extra().Settle; s != nil {
		return strings.Join(s.Words(p.Limit), "; ")
	}
	return "none"
}

func (e *Extras) payerWords() string {
	if e.Then == nil {
		return "none"
	}
	return descriptors.Printable(e.Then.Name)
}

func (p *Policy) failureWords() string {
	if p.OnFailure == Local {
		return fmt.Sprintf("local, a share of %g", p.Extra().LocalShare)
	}
	return p.OnFailure.String()
}
