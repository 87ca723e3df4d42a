package load

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// marker is in the place of the digits of a key. It has the same length as the digits, and does not occur in
// real descriptors.
const marker = "\x01\x02\x03\x04\x05\x06\x07\x08"

// maxKeys is the number of different keys that the digits can represent.
const maxKeys = 100_000_000

// request is an encoded RateLimitRequest. The number of its key can be replaced, so that creating a request
// costs little.
type request struct {
	message []byte
	digits  []int // the positions of the key's number
}

func newRequest(domain string, descriptors []string) (request, error) {
	decoded := &rls.RateLimitRequest{Domain: domain}
	for _, text := range descriptors {
		d := &common.RateLimitDescriptor{}
		for entry := range strings.SplitSeq(text, ",") {
			key, value, ok := strings.Cut(entry, "=")
			if !ok {
				return request{}, fmt.Errorf("descriptor %q: %q is not key=value", text, entry)
			}
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: strings.ReplaceAll(value, "{}", marker)})
		}
		decoded.Descriptors = append(decoded.Descriptors, d)
	}
	message, err := proto.Marshal(decoded)
	if err != nil {
		return request{}, fmt.Errorf("encode a request: %w", err)
	}
	req := request{message: message}
	for from := 0; ; from += len(marker) {
		i := bytes.Index(message[from:], []byte(marker))
		if i < 0 {
			break
		}
		from += i
		req.digits = append(req.digits, from)
	}
	return req, nil
}

// clone returns a copy of req whose message starts with prefix. The copy shares no memory with req, so another
// goroutine can use it.
func (req request) clone(prefix ...byte) request {
	c := request{message: slices.Concat(prefix, req.message)}
	for _, i := range req.digits {
		c.digits = append(c.digits, i+len(prefix))
	}
	return c
}

func (req request) setKey(key int) {
	for _, at := range req.digits {
		n := key
		for i := len(marker) - 1; i >= 0; i-- {
			req.message[at+i] = byte('0' + n%10)
			n /= 10
		}
	}
}

type verdict int

const (
	invalid verdict = iota // the answer is not a RateLimitResponse, or its code is neither OK nor OVER_LIMIT
	ok
	overLimit
)

const responseCode = 1 // the number of overall_code in RateLimitResponse

// verdictOf returns the verdict in message, an encoded RateLimitResponse. It reads the whole message.
func verdictOf(message []byte) verdict {
	v := invalid
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return invalid
		}
		message = message[n:]
		if number == responseCode && kind == protowire.VarintType {
			code, _ := protowire.ConsumeVarint(message)
			switch rls.RateLimitResponse_Code(code) {
			case rls.RateLimitResponse_OK:
				v = ok
			case rls.RateLimitResponse_OVER_LIMIT:
				v = overLimit
			case rls.RateLimitResponse_UNKNOWN:
				fallthrough
			default:
				v = invalid
			}
		}
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return invalid
		}
		message = message[n:]
	}
	return v
}
