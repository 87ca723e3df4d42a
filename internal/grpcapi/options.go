package grpcapi

import (
	"encoding/binary"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/rlsidecar/rlsidecar/internal/clientreply"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/tracing"
)

// Options configures a Server. The zero Options adds nothing to answers beside the verdict.
type Options struct {
	// Headers has the names of response headers that the proxy adds; nil means none.
	Headers *Headers
	// Metadata adds dynamic metadata: the request, and the metadata of the limits that allowed it. DeniedBy adds the
	// names of the limits that denied it, too.
	Metadata, DeniedBy bool
	// Bounds limits the size of requests; the zero Bounds mean the defaults.
	Bounds Bounds
	// Tracing, if not nil, traces each request.
	Tracing *tracing.Tracing
}

// Headers has the names of response headers.
type Headers struct {
	Limit, Remaining, Reset string
}

// Check returns an error if an option is invalid.
func (o Options) Check() error {
	if err := o.Bounds.withDefaults().Check(); err != nil {
		return err
	}
	if o.Headers == nil {
		return nil
	}
	_, err := o.Headers.check()
	return err
}

// reasonHeader states that the request lacks a required entry, or that the store could not decide a limit.
const (
	reasonHeader      = "x-ratelimit-reason"
	backendFailure    = "backend-failure"
	missingDescriptor = "missing-descriptor"
)

// forbiddenHeaders lists headers that would break a response if they were appended to it.
var forbiddenHeaders = map[string]bool{
	"host": true, "connection": true, "content-length": true, "content-type": true, "te": true,
	"trailer": true, "transfer-encoding": true, "upgrade": true,
}

// check converts the names to lower case and rejects invalid ones, because Envoy sends them unchecked.
func (h Headers) check() (Headers, error) {
	for _, name := range []*string{&h.Limit, &h.Remaining, &h.Reset} {
		if !httpguts.ValidHeaderFieldName(*name) || forbiddenHeaders[strings.ToLower(*name)] {
			return h, fmt.Errorf("%q cannot be the name of a response header", *name)
		}
		*name = strings.ToLower(*name)
	}
	return h, nil
}

// append appends the headers for v. As in the reference server, they describe the last descriptor that
// denies (except by a quota limit). If none denies, they describe the first of the descriptors with the
// fewest units left.
func (h *Headers) append(b []byte, v *limiter.Verdict) []byte {
	var chosen status
	for i := range v.Statuses {
		var s status
		s.report(v, i)
		if s.limit != nil && (chosen.limit == nil || s.denies() || !chosen.denies() && s.remaining < chosen.remaining) {
			chosen = s
		}
	}
	if chosen.limit != nil {
		b = appendHeader(b, h.Limit, strconv.FormatUint(uint64(windowOf(chosen.limit).requests), 10))
		b = appendHeader(b, h.Remaining, strconv.FormatUint(uint64(chosen.remaining), 10))
		if chosen.reset > 0 {
			b = appendHeader(b, h.Reset, strconv.FormatInt(chosen.reset, 10))
		}
	}
	switch {
	case v.Missing != nil:
		b = appendHeader(b, reasonHeader, missingDescriptor)
	case v.Failed:
		b = appendHeader(b, reasonHeader, backendFailure)
	}
	return b
}

// denies reports whether s by itself denies the request.
func (s *status) denies() bool { return s.over && !s.policy.Quota }

// appendHeader appends a HeaderValue. The value must not contain bytes from a client.
func appendHeader(b []byte, name, value string) []byte {
	const headerKey, headerValue = 1, 2
	b, start := openMessage(b, responseHeaders)
	return closeMessage(appendText(appendText(b, headerKey, name), headerValue, value), start)
}

// appendMetadata appends the dynamic metadata of the reference server: the request, and under "metadata"
// the metadata of the limits whose status is OK. If two limits have the same key, the first one takes
// precedence. "backend_failure" means that the store could not decide a limit. With deniedBy, "denied_by" has the names
// of the limits that deny, separated by commas; the reference server does not send it.
func appendMetadata(b []byte, x *exchange, deniedBy bool) []byte {
	fields := map[string]any{"domain": printable(x.call.Request.Domain)}
	list := make([]any, len(x.limits))
	for i := range x.limits {
		list[i] = describe(&x.call.Descriptors[i], &x.limits[i])
	}
	fields["descriptors"] = list
	if x.hits != 0 {
		fields["hitsAddend"] = x.hits
	}
	merged := allowedMetadata(&x.call.Verdict)
	if x.call.Started() {
		id := string(x.call.AppendID(nil))
		fields[settleField] = id
		merged = merge(map[string]any{settleField: id}, merged)
	}
	if merged != nil {
		fields["metadata"] = merged
	}
	if x.call.Failed {
		fields["backend_failure"] = true
	}
	if names := clientreply.AppendDenying(nil, &x.call.Verdict); deniedBy && len(names) > 0 {
		fields["denied_by"] = string(names)
	}
	message, err := structpb.NewStruct(fields)
	if err != nil { // the configuration has metadata that is not JSON; the rest is still sent
		delete(fields, "metadata")
		if message, err = structpb.NewStruct(fields); err != nil {
			return b
		}
	}
	encoded, err := proto.Marshal(message)
	if err != nil {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, responseMetadata, protowire.BytesType), encoded)
}

// settleField is the field of dynamic metadata with the id of the reservation. It occurs twice: at the top
// level, and in "metadata" with the metadata of limits.
const settleField = "settle"

// appendSettle appends dynamic metadata with the id of the reservation that x made:
//
//	{settle: ID, metadata: {settle: ID}}
//
// The id is first appended alone, because the lengths at the start of the messages around it depend on its
// length. The metadata is appended after it and then moved to its place.
func appendSettle(b []byte, x *exchange) []byte {
	const (
		structFields           = 1
		fieldKey, fieldValue   = 1, 2
		valueText, valueStruct = 3, 5

		nested = "metadata"
	)
	sizeOf := func(n int) int { return 1 + protowire.SizeBytes(n) } // the size of a field with n bytes
	start := func(b []byte, field protowire.Number, n int) []byte {
		return binary.AppendUvarint(append(b, byte(field)<<3|byte(protowire.BytesType)), uint64(n))
	}
	from := len(b)
	b = x.appendID(b)
	message := len(b)
	id := b[from:message:message]
	value := sizeOf(len(id))
	field := sizeOf(len(settleField)) + sizeOf(value)
	inner := sizeOf(field) // the size of a Struct that has only this field
	outer := sizeOf(len(nested)) + sizeOf(sizeOf(inner))
	text := func(b []byte) []byte {
		b = appendText(start(b, structFields, field), fieldKey, settleField)
		return append(start(start(b, fieldValue, value), valueText, len(id)), id...)
	}
	b = text(start(b, responseMetadata, inner+sizeOf(outer)))
	b = appendText(start(b, structFields, outer), fieldKey, nested)
	b = text(start(start(b, fieldValue, sizeOf(inner)), valueStruct, inner))
	return b[:from+copy(b[from:], b[message:])]
}

func describe(d *limiter.Descriptor, a *descriptorFields) map[string]any {
	entries := make([]any, len(d.Entries))
	for i := range d.Entries {
		entries[i] = printable(d.Entries[i].Key + "=" + d.Entries[i].Value)
	}
	fields := map[string]any{"entries": entries}
	if a.hasLimit {
		fields["limit"] = a.limitText()
	}
	if a.hasHits {
		fields["hitsAddend"] = float64(d.Cost)
	}
	return fields
}

// limitText returns the override in protobuf's text form.
func (a *descriptorFields) limitText() string {
	name := strconv.Itoa(int(a.unit))
	for i := range units {
		if units[i].number == a.unit {
			name = units[i].name
		}
	}
	s := fmt.Sprintf("requests_per_unit:%d unit:%s", a.requests, name)
	if a.multiplier > 0 {
		s += fmt.Sprintf(" unit_multiplier:{value:%d}", a.multiplier)
	}
	return s
}

// allowedMetadata merges the metadata of the limits whose status is OK. It returns nil if they have none. As in the
// reference server, unlimited and replaced limits have none. It does not modify the maps of the configuration.
func allowedMetadata(v *limiter.Verdict) map[string]any {
	var merged map[string]any
	for i := range v.Statuses {
		s := &v.Statuses[i]
		if s.Result < 0 || s.Denied {
			continue
		}
		r := &v.Results[s.Result]
		if r.Policy != nil && r.Outcome != limiter.Unlimited && r.Policy.Extra().Metadata != nil {
			merged = merge(merged, r.Policy.Extra().Metadata)
		}
	}
	return merged
}

// merge returns a map with the entries of both arguments. If both have a key, the value in preferred is used. Nested
// maps are merged too. Neither argument is modified.
func merge(preferred, other map[string]any) map[string]any {
	out := make(map[string]any, len(preferred)+len(other))
	maps.Copy(out, other)
	for key, value := range preferred {
		a, isMap := value.(map[string]any)
		b, areMaps := out[key].(map[string]any)
		if isMap && areMaps {
			out[key] = merge(a, b)
		} else {
			out[key] = value
		}
	}
	return out
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}
