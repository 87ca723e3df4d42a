// Package rlstest parses requests of RateLimitService v3 from text, and formats answers as text, for tests
// that compare lines.
package rlstest

import (
	"fmt"
	"strconv"
	"strings"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Descriptor parses a descriptor: key=value,key=value…, optionally followed by ;hits=N, ;refund and ;limit=N/UNIT, where
// UNIT is a name or a number. It panics at an unknown option or a malformed number, which is a mistake in the test.
func Descriptor(text string) *ratelimit.RateLimitDescriptor {
	entries, extras, _ := strings.Cut(text, ";")
	d := &ratelimit.RateLimitDescriptor{}
	for part := range strings.SplitSeq(entries, ",") {
		key, value, _ := strings.Cut(part, "=")
		d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	for extra := range strings.SplitSeq(extras, ";") {
		name, value, _ := strings.Cut(extra, "=")
		switch name {
		case "":
		case "hits":
			d.HitsAddend = wrapperspb.UInt64(number(value))
		case "refund":
			d.IsNegativeHits = true
		case "limit":
			n, unit, _ := strings.Cut(value, "/")
			d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(number(n))}
			if known, ok := typev3.RateLimitUnit_value[unit]; ok {
				d.Limit.Unit = typev3.RateLimitUnit(known)
			} else {
				d.Limit.Unit = typev3.RateLimitUnit(number(unit))
			}
		default:
			panic(fmt.Sprintf("%s: %q is not known", text, extra))
		}
	}
	return d
}

func number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// Request returns a request for domain with these descriptors, which [Descriptor] parses.
func Request(domain string, descriptors ...string) *rls.RateLimitRequest {
	r := &rls.RateLimitRequest{Domain: domain}
	for _, text := range descriptors {
		r.Descriptors = append(r.Descriptors, Descriptor(text))
	}
	return r
}

// Status formats one status as a line: its code, the remaining units, and the limit if there is one. The duration until
// the reset depends on the clock, so Status writes only the word reset for whole seconds from 1 s to 365 days. It writes
// other durations in full, because an answer must not have them, and nothing if there is no duration.
func Status(s *rls.RateLimitResponse_DescriptorStatus) string {
	text := fmt.Sprintf("%s left %d", s.Code, s.LimitRemaining)
	if l := s.CurrentLimit; l != nil {
		text += fmt.Sprintf(" of %d/%s", l.RequestsPerUnit, l.Unit)
		if l.Name != "" {
			text += " " + l.Name
		}
	}
	switch d := s.DurationUntilReset; {
	case d == nil:
	case d.Seconds < 1 || d.Seconds > 365*86400 || d.Nanos != 0:
		text += " reset " + d.String()
	default:
		text += " reset"
	}
	return text
}

// Response formats the overall code and all statuses as one line.
func Response(r *rls.RateLimitResponse) string {
	parts := []string{r.OverallCode.String()}
	for _, s := range r.Statuses {
		parts = append(parts, Status(s))
	}
	return strings.Join(parts, " | ")
}
