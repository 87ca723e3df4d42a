package h2grpc

import (
	"bytes"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// head is the part of a request's header fields that the server uses.
type head struct {
	forMethod bool          // the request is for the Method
	gzip      bool          // its message may be compressed
	timeout   time.Duration // grpc-timeout; 0 means none
	// length is the content-length; -1 means that there is none.
	length int64
	// malformed means malformed by RFC 9113, 8.1.1.
	malformed bool
	// tooLong means that the fields exceed maxHeaders. They were decoded only to maintain the state of
	// hpack.
	tooLong bool
	// refusal is the answer to a request that is not served (see parsedFields.refused). It is nil for other requests.
	refusal *refusal
	trace   any // the result of Config.Caller
}

type refusal struct {
	httpStatus int
	status     Status
}

// These are the answers of grpc-go, except that they do not contain the client's bytes.
var (
	refusedLength    = &refusal{http.StatusRequestHeaderFieldsTooLarge, Status{8, "header list too long"}}
	refusedType      = &refusal{http.StatusUnsupportedMediaType, Status{3, "invalid gRPC request content-type"}}
	refusedAuthority = &refusal{http.StatusBadRequest, Status{13, "no host or :authority header present"}}
	refusedHead      = &refusal{http.StatusMethodNotAllowed, Status{13, ""}} // the answer to HEAD has no body
	refusedMethod    = &refusal{http.StatusMethodNotAllowed, Status{13, "invalid method, should be POST"}}
	refusedTimeout   = &refusal{http.StatusBadRequest, Status{13, "malformed grpc-timeout"}}
)

// headReader decodes header blocks. Proxies send the same block for each request, because all its fields
// are in the dynamic table, except fields that they never add (Envoy: the path). While the table does not
// change, such a block is decoded only once.
type headReader struct {
	path    string
	trace   func(field func(name string) string) any // see Config.Caller
	decoder *hpack.Decoder
	fields  []hpack.HeaderField // the fields of the last block, or none if the block was known; valid until release or the next block
	size    int
	work    int // the sum of size in this turn of the connection, and turnWork/othersPerTurn for each stream of Config.Others
	tooLong bool

	known     []byte // a block that does not change the table; empty means none
	knownHead head   // the meaning of known; valid as long as the table does not change
	other     head   // the meaning of a block that is not cached
}

func newHeadReader(c *Config) *headReader {
	r := &headReader{path: c.Path, trace: c.Caller}
	r.decoder = hpack.NewDecoder(4096, r.field)
	r.decoder.SetMaxStringLength(maxHeaders)
	return r
}

func (r *headReader) field(f hpack.HeaderField) {
	r.size += int(f.Size())
	if r.size > maxHeaders {
		r.tooLong = true
		return
	}
	r.fields = append(r.fields, f)
}

// release releases the memory of the fields.
func (r *headReader) release() {
	if cap(r.fields) > fewFields {
		r.fields = nil
		return
	}
	clear(r.fields)
	r.fields = r.fields[:0]
}

// read decodes a complete block. The result is valid until the next call. An error is a compression error,
// after which the connection cannot be used.
func (r *headReader) read(block []byte, trailers bool) (*head, error) {
	if len(r.known) > 0 && !trailers && bytes.Equal(block, r.known) {
		r.fields = r.fields[:0]
		return &r.knownHead, nil
	}
	r.fields, r.size, r.tooLong = r.fields[:0], 0, false
	if _, err := r.decoder.Write(block); err != nil {
		return nil, err
	}
	if err := r.decoder.Close(); err != nil {
		return nil, err
	}
	r.work += r.size
	same := leavesTable(block)
	if !same {
		r.known = r.known[:0]
	}
	if trailers {
		r.other = head{malformed: r.malformedTrailers(), tooLong: r.tooLong}
		return &r.other, nil
	}
	r.other = r.head()
	if same && r.other.forMethod && len(block) <= maxKnown {
		r.known, r.knownHead = append(r.known[:0], block...), r.other
	}
	return &r.other, nil
}

// leavesTable reports whether a valid block leaves the dynamic table unchanged. That is so if all its fields
// are references to the table (RFC 7541, 6.1) or literals that are not added to it (6.2.2, 6.2.3).
func leavesTable(block []byte) bool {
	for len(block) > 0 {
		var same bool
		if block, same = afterField(block); !same {
			return false
		}
	}
	return true
}

// hasMoreFields reports whether a block has more than n fields, without decoding it.
func hasMoreFields(block []byte, n int) bool {
	for ; len(block) > 0 && n >= 0; n-- {
		block, _ = afterField(block)
	}
	return n < 0
}

// afterField returns the rest of a block after a field or an update of the table's size. same means that this leaves
// the table unchanged.
func afterField(block []byte) (rest []byte, same bool) {
	bits := 4
	switch b := block[0]; {
	case b >= 0x80:
		_, rest = integer(block, 7)
		return rest, true
	case b >= 0x40: // a literal that is added to the table
		bits = 6
	case b >= 0x20: // an update of the table's size
		_, rest = integer(block, 5)
		return rest, false
	}
	name, rest := integer(block, bits)
	if name == 0 {
		rest = afterString(rest)
	}
	return afterString(rest), bits == 4
}

// integer reads an integer with a prefix of the given number of bits (RFC 7541, 5.1), and returns the rest of b.
func integer(b []byte, bits int) (n uint64, rest []byte) {
	if len(b) == 0 {
		return 0, nil
	}
	most := uint64(1)<<bits - 1
	n = uint64(b[0]) & most
	if n < most {
		return n, b[1:]
	}
	for i, shift := 1, 0; i < len(b) && shift < 63; i, shift = i+1, shift+7 {
		n += uint64(b[i]&0x7f) << shift
		if b[i] < 0x80 {
			return n, b[i+1:]
		}
	}
	return n, nil
}

// afterString returns the rest of b after a string (RFC 7541, 5.2).
func afterString(b []byte) []byte {
	n, rest := integer(b, 7)
	return rest[min(n, uint64(len(rest))):]
}

func (r *headReader) head() head {
	p := parsedFields{head: head{length: -1, tooLong: r.tooLong}}
	for i := range r.fields {
		if f := &r.fields[i]; strings.HasPrefix(f.Name, ":") {
			p.addPseudo(f)
		} else {
			p.add(f)
		}
	}
	p.malformed = p.malformed || !p.complete()
	p.refusal = p.refused()
	p.forMethod = !p.malformed && p.method == http.MethodPost && p.path == r.path && (p.refusal == nil || p.tooLong)
	if p.forMethod && r.trace != nil {
		p.trace = r.trace(r.value)
	}
	return p.head
}

// value returns the value of the first field with the given name, or "".
func (r *headReader) value(name string) string {
	for i := range r.fields {
		if r.fields[i].Name == name {
			return r.fields[i].Value
		}
	}
	return ""
}

type parsedFields struct {
	head
	method, path, scheme, authority, contentType string

	pseudo  [4]int // number of :method, :path, :scheme and :authority fields
	hosts   int    // number of host fields
	regular bool   // a field that is not a pseudo field has occurred
	// badTimeout means that grpc-timeout is malformed.
	badTimeout bool
}

// addPseudo adds a field whose name starts with a colon (RFC 9113, 8.3).
func (p *parsedFields) addPseudo(f *hpack.HeaderField) {
	var at int
	switch f.Name {
	case ":method":
		at, p.method = 0, f.Value
	case ":path":
		at, p.path = 1, f.Value
	case ":scheme":
		at, p.scheme = 2, f.Value
	case ":authority":
		at, p.authority = 3, f.Value
	default:
		p.malformed = true
	}
	p.pseudo[at]++
	p.malformed = p.malformed || p.regular || !httpguts.ValidHeaderFieldValue(f.Value)
}

func (p *parsedFields) add(f *hpack.HeaderField) {
	p.regular = true
	if !validField(f) {
		p.malformed = true
	}
	switch f.Name {
	case "content-type":
		p.contentType = f.Value
	case "grpc-encoding":
		p.gzip = f.Value == "gzip"
	case "grpc-timeout":
		timeout, ok := parseTimeout(f.Value)
		p.timeout, p.badTimeout = timeout, !ok
	case "content-length":
		n, err := strconv.ParseUint(f.Value, 10, 62)
		p.malformed = p.malformed || err != nil || p.length >= 0 && p.length != int64(n)
		p.length = int64(n)
	case "host":
		p.hosts++
	}
}

// complete reports whether the request has the required pseudo fields (RFC 9113, 8.3.1 and 8.5).
func (p *parsedFields) complete() bool {
	switch {
	case p.pseudo[0] != 1 || p.pseudo[3] > 1 || p.hosts > 1:
		return false
	case p.method == http.MethodConnect:
		return p.pseudo[1] == 0 && p.pseudo[2] == 0 && p.authority != ""
	default:
		return p.pseudo[1] == 1 && p.pseudo[2] == 1 && p.path != "" && p.scheme != "" && (p.path[0] == '/' || p.path == "*")
	}
}

func (p *parsedFields) refused() *refusal {
	switch {
	case p.tooLong:
		return refusedLength
	case p.method == http.MethodHead:
		return refusedHead
	case !isGRPC(p.contentType):
		return refusedType
	case p.pseudo[3]+p.hosts == 0:
		return refusedAuthority
	case p.method != http.MethodPost:
		return refusedMethod
	case p.badTimeout:
		return refusedTimeout
	}
	return nil
}

func isGRPC(contentType string) bool {
	rest, is := strings.CutPrefix(strings.ToLower(contentType), typeField.Value)
	return is && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

func (r *headReader) malformedTrailers() bool {
	for i := range r.fields {
		if f := &r.fields[i]; strings.HasPrefix(f.Name, ":") || !validField(f) {
			return true
		}
	}
	return false
}

// validField reports whether a field is valid by RFC 9113, 8.2.
func validField(f *hpack.HeaderField) bool {
	switch f.Name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return false
	case "te":
		return f.Value == "trailers"
	}
	for i := 0; i < len(f.Name); i++ {
		if c := f.Name[i]; 'A' <= c && c <= 'Z' || !httpguts.IsTokenRune(rune(c)) {
			return false
		}
	}
	return f.Name != "" && httpguts.ValidHeaderFieldValue(f.Value)
}

var timeoutUnits = map[byte]time.Duration{
	'H': time.Hour, 'M': time.Minute, 'S': time.Second,
	'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
}

// parseTimeout reads a grpc-timeout: up to eight digits and a unit. A timeout of 0 becomes a nanosecond.
func parseTimeout(s string) (time.Duration, bool) {
	if len(s) < 2 || len(s) > 9 {
		return 0, false
	}
	unit, ok := timeoutUnits[s[len(s)-1]]
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 32)
	if !ok || err != nil {
		return 0, false
	}
	if n > math.MaxInt64/uint64(unit) {
		return math.MaxInt64, true
	}
	return max(1, time.Duration(n)*unit), true
}
