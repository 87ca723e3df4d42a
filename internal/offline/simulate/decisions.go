package simulate

import (
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf8"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// unlimitedRemaining is reported as the remaining units of an unlimited limit, as by the reference server.
const unlimitedRemaining = 1<<32 - 1

type decisions struct {
	values []string // the buffer for the key of one limit
}

// append appends the answer to c to dst, as one line of JSON. Members are in this order. Members that do not apply are
// left out.
//
//	{"ok","retry_after_us","error","wait_us","limits":[{"name","payer","key","ok","remaining","retry_after_us","error","wait_us","blocked_us"}]}
//
// The ok of a limit is its own decision, even in shadow mode, in which it does not deny the request.
func (d *decisions) append(dst []byte, c *limiter.Call) []byte {
	dst = append(dst, `{"ok":`...)
	dst = strconv.AppendBool(dst, !c.Denied)
	if c.Missing != nil {
		dst = append(dst, `,"retry_after_us":-1,"error":"missing-descriptor"`...)
	} else {
		dst = appendRetry(dst, c.RetryAfter, c.Never, c.Busy, c.Denied && !c.Never && full(c))
	}
	if wait, waits := verdictWait(c); waits && !c.Denied {
		dst = strconv.AppendInt(append(dst, `,"wait_us":`...), int64(wait), 10)
	}
	dst = append(dst, `,"limits":[`...)
	first := true
	for i := range c.Results {
		r := &c.Results[i]
		if r.Policy == nil || r.Outcome == limiter.Replaced {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = d.limit(dst, c, r)
	}
	return append(dst, "]}\n"...)
}

func (d *decisions) limit(dst []byte, c *limiter.Call, r *limiter.Result) []byte {
	if r.For != nil {
		dst = appendText(append(appendText(append(dst, `{"name":`...), r.For.Name), `,"payer":`...), r.Policy.Name)
	} else {
		dst = appendText(append(dst, `{"name":`...), r.Policy.Name)
	}
	d.values = c.AppendValues(d.values[:0], r)
	dst = appendKey(dst, d.values)
	allowed, remaining := r.Decision.Allowed, r.Decision.Remaining
	if r.Outcome == limiter.Unlimited {
		allowed, remaining = true, unlimitedRemaining
	}
	dst = strconv.AppendBool(append(dst, `,"ok":`...), allowed)
	dst = strconv.AppendInt(append(dst, `,"remaining":`...), remaining, 10)
	busy := !allowed && r.Decision.Err == nil && r.Policy.Limit.Kind == algorithms.Concurrency
	dst = appendRetry(dst, r.Decision.RetryAfter, r.Decision.Never, busy, errors.Is(r.Decision.Err, backend.ErrFull))
	if waits(c, r) {
		dst = strconv.AppendInt(append(dst, `,"wait_us":`...), int64(r.Decision.Wait), 10)
	}
	if blocked := r.Decision.Blocked; blocked > 0 {
		dst = strconv.AppendInt(append(dst, `,"blocked_us":`...), int64(blocked), 10)
	}
	return append(dst, '}')
}

func appendRetry(dst []byte, after algorithms.Micros, never, busy, full bool) []byte {
	switch {
	case never:
		return append(dst, `,"retry_after_us":-1,"error":"never"`...)
	case busy:
		return append(dst, `,"retry_after_us":-1,"error":"busy"`...)
	}
	dst = strconv.AppendInt(append(dst, `,"retry_after_us":`...), int64(after), 10)
	if full {
		dst = append(dst, `,"error":"full"`...)
	}
	return dst
}

func full(c *limiter.Call) bool {
	for i := range c.Results {
		if errors.Is(c.Results[i].Decision.Err, backend.ErrFull) {
			return true
		}
	}
	return false
}

// waits reports whether r was allowed and has a waiting time: r is a decision of a leaky bucket, or a reservation by
// name. The waiting time may be 0.
func waits(c *limiter.Call, r *limiter.Result) bool {
	if r.Policy == nil || !r.Decision.Allowed {
		return false
	}
	return r.Policy.Limit.Kind == algorithms.LeakyBucket || len(c.Limits) > 0 && c.Limits[r.Descriptor].Reserve
}

func verdictWait(c *limiter.Call) (wait algorithms.Micros, any bool) {
	for i := range c.Results {
		if r := &c.Results[i]; waits(c, r) {
			wait, any = max(wait, r.Decision.Wait), true
		}
	}
	return wait, any
}

func appendKey(dst []byte, values []string) []byte {
	switch len(values) {
	case 0:
		return dst
	case 1:
		return appendText(append(dst, `,"key":`...), values[0])
	}
	dst = append(dst, `,"key":[`...)
	for i, v := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendText(dst, v)
	}
	return append(dst, ']')
}

// appendText appends s as a JSON string; bytes that are not UTF-8 become U+FFFD.
func appendText(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			text, _ := json.Marshal(s) // encoding a string cannot fail
			return append(dst, text...)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}
