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
	lease, weights, settle, payer, failure := "none", "none", "none", "none", p.OnFailure.String()
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
	if p.OnFailure == Local {
		failure += fmt.Sprintf(", a share of %g", more.LocalShare)
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
		{"on_backend_failure", failure, p.OnFailure == Deny, false},
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
