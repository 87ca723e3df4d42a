package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/weights"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const (
	// maxCharges is the largest number of limits in one request. It is bounded, because a Store charges them in one
	// step.
	maxCharges = 100
	// maxCount is the largest absolute count. All whole numbers up to it are exact in every JSON
	// implementation.
	maxCount = 1 << 53
)

// maxKey is the largest number of values in a key. No descriptor has more entries.
const maxKey = 100

// maxID bounds a request_id, in bytes.
const maxID = 128

// A request_id is remembered for defaultRemember, unless the request states another time, from leastRemember to
// limiter.MaxRemember.
const (
	defaultRemember = 600 * algorithms.Second
	leastRemember   = algorithms.Second
)

// maxJitter bounds a jitter, in ms.
const maxJitter = 3_600_000

type apiRequest struct {
	call *limiter.Call
	// id is the idempotency key; "" means none. remember is how long it is remembered.
	id       string
	remember algorithms.Micros
	// jitter bounds the random delay, in ms, that is added to the retry and wait times in the answer.
	jitter int64
	// configs has an element for each element of call.Limits: the text of its member config, or nil.
	configs [][]byte
	// settles means that the request settles the reservation. The real cost is costs or, if costs is nil, count.
	settles     bool
	reservation string
	count       int64
	costs       map[string]int64 // by kind of unit
	counted     bool             // the request states count or costs
}

// parseRequest parses a request: one limit, or a list of them under "limits", or a reservation to settle.
// Unknown members, repeated members and wrong types are errors.
func parseRequest(body []byte) (*apiRequest, error) {
	p, err := newParser(body)
	if err != nil {
		return nil, err
	}
	req := &apiRequest{call: &limiter.Call{}, remember: defaultRemember}
	one, config := limiter.NamedCharge{Count: 1}, []byte(nil)
	members := p.limitMembers(&one, &config)
	members["domain"] = into(&req.call.Request.Domain, p.text)
	members["limits"] = func() error { return p.limitList(req) }
	members["reservation"] = into(&req.reservation, p.text)
	members["request_id"] = into(&req.id, p.id)
	members["remember"] = into(&req.remember, p.remember)
	members["jitter"] = into(&req.jitter, func() (int64, error) { return p.whole(0, maxJitter, "0", "3600000, an hour in milliseconds") })
	seen, err := p.object(members)
	switch {
	case err != nil:
		return nil, err
	case seen["reservation"]:
		req.settles, req.count, req.costs, req.counted = true, one.Count, one.Costs, seen["count"] || seen["costs"]
		return req, onlySettles(seen, req.count)
	case !seen["limits"] && !seen["name"]:
		return nil, errors.New(`names no limit; write {"name": …} or {"limits": [{"name": …}, …]}`)
	case seen["remember"] && !seen["request_id"]:
		return nil, errors.New("has remember without a request_id; add the request_id that is remembered, or leave out remember")
	case seen["count"] && seen["costs"]:
		return nil, errBothCosts
	case !seen["limits"]:
		req.add(one, config)
	case seen["name"] || seen["key"] || seen["count"] || seen["costs"] || seen["reserve"] || seen["config"]:
		return nil, errors.New("has limits beside a limit; put all of them into the list")
	}
	return req, nil
}

func (a *apiRequest) add(one limiter.NamedCharge, config []byte) {
	a.call.Limits, a.configs = append(a.call.Limits, one), append(a.configs, config)
}

// onlySettles returns an error if a request with a reservation has a member that cannot be combined with it,
// or does not have exactly one of count and costs, or if count is negative.
func onlySettles(seen map[string]bool, count int64) error {
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if name != "reservation" && name != "count" && name != "costs" {
			return fmt.Errorf("%s cannot be combined with reservation; send reservation with only count or costs", name)
		}
	}
	switch {
	case seen["count"] && seen["costs"]:
		return errBothCosts
	case seen["costs"]:
		return nil
	case count < 0:
		return fmt.Errorf("count: the real cost of a reservation must be 0 or more, but is %d", count)
	}
	return nil
}

// parseRenewal parses the request to renew the slots of a reservation.
func parseRenewal(body []byte) (id string, err error) {
	p, err := newParser(body)
	if err != nil {
		return "", err
	}
	seen, err := p.object(map[string]func() error{"reservation": into(&id, p.text)})
	if err == nil && !seen["reservation"] {
		err = errors.New(`has no reservation; write {"reservation": ID}`)
	}
	return id, err
}

var errBothCosts = errors.New("has count and costs; send one of them")

func parseReset(body []byte) (domain string, charge limiter.NamedCharge, err error) {
	p, err := newParser(body)
	if err != nil {
		return "", charge, err
	}
	seen, err := p.object(map[string]func() error{
		"domain": into(&domain, p.text), "name": into(&charge.Name, p.text), "key": into(&charge.Key, p.key),
	})
	if err == nil && !seen["name"] {
		err = errors.New(`names no limit; write {"name": …}`)
	}
	return domain, charge, err
}

// parser parses one well-formed JSON value.
type parser struct {
	body []byte
	dec  *json.Decoder
}

func newParser(body []byte) (*parser, error) {
	if !utf8.Valid(body) {
		return nil, errors.New(`is not UTF-8; write a key of other bytes as {"base64": "…"}`)
	}
	var whole json.RawMessage
	if err := json.Unmarshal(body, &whole); err != nil {
		if at, ok := errors.AsType[*json.SyntaxError](err); ok {
			return nil, fmt.Errorf("is not JSON, at byte %d: %w", at.Offset, err)
		}
		return nil, fmt.Errorf("is not JSON: %w", err)
	}
	p := &parser{body: body, dec: json.NewDecoder(bytes.NewReader(body))}
	p.dec.UseNumber()
	return p, nil
}

func (p *parser) token() json.Token {
	t, _ := p.dec.Token() // the value is well-formed, so there is no error
	return t
}

// object parses an object. It parses each member with its function in members, and returns the names of the
// members that occurred.
func (p *parser) object(members map[string]func() error) (seen map[string]bool, err error) {
	if t := p.token(); t != json.Delim('{') {
		return nil, fmt.Errorf("must be an object, but is %s", described(t))
	}
	seen = map[string]bool{}
	for p.dec.More() {
		name, err := p.text()
		if err != nil {
			return nil, err
		}
		read := members[name]
		switch {
		case read == nil:
			return nil, fmt.Errorf("unknown field %q", descriptors.Printable(name))
		case seen[name]:
			return nil, fmt.Errorf("%s occurs twice; send it once", name)
		}
		seen[name] = true
		if err := read(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	p.token()
	return seen, nil
}

func (p *parser) limitMembers(of *limiter.NamedCharge, config *[]byte) map[string]func() error {
	return map[string]func() error{
		"config": into(config, p.config), "name": into(&of.Name, p.text), "key": into(&of.Key, p.key),
		"count": into(&of.Count, p.count), "costs": into(&of.Costs, p.costs), "reserve": into(&of.Reserve, p.bool),
	}
}

// into returns the function with which object parses a member to at.
func into[T any](at *T, parse func() (T, error)) func() error {
	return func() (err error) {
		*at, err = parse()
		return err
	}
}

func (p *parser) bool() (bool, error) {
	t := p.token()
	is, ok := t.(bool)
	if !ok {
		return false, fmt.Errorf("must be true or false, but is %s", described(t))
	}
	return is, nil
}

// id parses a request_id.
func (p *parser) id() (string, error) {
	id, err := p.text()
	if err == nil && (id == "" || len(id) > maxID) {
		err = fmt.Errorf("must have 1 to %d bytes, but has %d", maxID, len(id))
	}
	return id, err
}

func (p *parser) limitList(into *apiRequest) error {
	if t := p.token(); t != json.Delim('[') {
		return fmt.Errorf("must be a list, but is %s", described(t))
	}
	for n := 0; p.dec.More(); n++ {
		if n == maxCharges {
			return fmt.Errorf("has more than %d limits", maxCharges)
		}
		one, config := limiter.NamedCharge{Count: 1}, []byte(nil)
		seen, err := p.object(p.limitMembers(&one, &config))
		switch {
		case err != nil:
			return fmt.Errorf("[%d]: %w", n, err)
		case !seen["name"]:
			return fmt.Errorf("[%d]: names no limit", n)
		case seen["count"] && seen["costs"]:
			return fmt.Errorf("[%d]: %w", n, errBothCosts)
		}
		into.add(one, config)
	}
	p.token()
	if len(into.configs) == 0 {
		return errors.New("is empty; name at least one limit")
	}
	return nil
}

func (p *parser) text() (string, error) {
	start := p.dec.InputOffset()
	t := p.token()
	s, ok := t.(string)
	if !ok {
		return "", fmt.Errorf("must be a string, but is %s", described(t))
	}
	// Half of a surrogate pair is not a character. encoding/json replaces each half by U+FFFD, so different
	// keys would become equal. A string that also has a complete pair is refused, too.
	if strings.ContainsRune(s, utf8.RuneError) &&
		bytes.Contains(bytes.ToLower(p.body[start:p.dec.InputOffset()]), []byte(`\ud`)) {
		return "", errors.New("has half of a surrogate pair, which is not a character")
	}
	return s, nil
}

// key parses a value, or a list of values.
func (p *parser) key() (key []string, err error) {
	if p.next() != '[' {
		value, err := p.value()
		return []string{value}, err
	}
	p.token()
	for n := 0; p.dec.More(); n++ {
		if n == maxKey {
			return nil, fmt.Errorf("has more than %d values", maxKey)
		}
		value, err := p.value()
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", n, err)
		}
		key = append(key, value)
	}
	p.token()
	return key, nil
}

// value parses a string, or bytes in the form {"base64": "…"}.
func (p *parser) value() (value string, err error) {
	if p.next() != '{' {
		return p.text()
	}
	var coded string
	seen, err := p.object(map[string]func() error{"base64": into(&coded, p.text)})
	if err != nil {
		return "", err
	}
	if !seen["base64"] {
		return "", errors.New(`must be a string or {"base64": "…"}`)
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(coded)
	if err != nil {
		return "", errors.New("is not base64")
	}
	return string(raw), nil
}

// next returns the first byte of the next value.
func (p *parser) next() byte {
	rest := bytes.TrimLeft(p.body[p.dec.InputOffset():], " \t\r\n:,")
	return rest[0] // the value is well-formed, so another value follows
}

// remember parses how long a request_id is remembered.
func (p *parser) remember() (algorithms.Micros, error) {
	text, err := p.text()
	if err != nil {
		return 0, err
	}
	span, err := duration.Parse(text)
	if err != nil || span < leastRemember || span > limiter.MaxRemember {
		return 0, fmt.Errorf("must be a time from 1s to 30d, such as 168h or 7d, but is %q", descriptors.Printable(text))
	}
	return span, nil
}

func (p *parser) config() ([]byte, error) {
	if next := p.next(); next != '{' {
		return nil, fmt.Errorf("must be an object, but is %s", described(p.token()))
	}
	var raw json.RawMessage
	if err := p.dec.Decode(&raw); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := json.Compact(&text, raw); err != nil {
		return nil, err
	}
	if text.Len() > maxInline {
		return nil, fmt.Errorf("has %d bytes; the maximum is %d", text.Len(), maxInline)
	}
	return text.Bytes(), nil
}

func (p *parser) costs() (map[string]int64, error) {
	if t := p.token(); t != json.Delim('{') {
		return nil, fmt.Errorf("must be an object such as {\"input\": 1200}, but is %s", described(t))
	}
	costs := map[string]int64{}
	for p.dec.More() {
		name, err := p.text()
		if err != nil {
			return nil, err
		}
		if _, twice := costs[name]; twice {
			return nil, fmt.Errorf("%q occurs twice; send it once", descriptors.Printable(name))
		}
		if len(costs) == weights.Max || len(name) > weights.MaxName {
			return nil, fmt.Errorf("has more than %d names, or one of more than %d bytes", weights.Max, weights.MaxName)
		}
		if costs[name], err = p.whole(0, maxCount, "0", "2^53"); err != nil {
			return nil, fmt.Errorf("%s: %w", descriptors.Printable(name), err)
		}
	}
	p.token()
	if len(costs) == 0 {
		return nil, errors.New("is empty; send a cost, or count")
	}
	return costs, nil
}

func (p *parser) count() (int64, error) { return p.whole(-maxCount, maxCount, "-2^53", "2^53") }

// whole parses a whole number from low to high, both included. lowName and highName are the names of these bounds in
// errors.
func (p *parser) whole(low, high int64, lowName, highName string) (int64, error) {
	t := p.token()
	number, ok := t.(json.Number)
	if !ok {
		return 0, fmt.Errorf("must be a whole number, but is %s", described(t))
	}
	n, err := strconv.ParseInt(string(number), 10, 64)
	if errors.Is(err, strconv.ErrSyntax) { // 1.0 and 1e3 are whole numbers in JSON Schema
		var f float64
		if f, err = strconv.ParseFloat(string(number), 64); err == nil && f != math.Trunc(f) {
			return 0, fmt.Errorf("must be a whole number, but is %s", descriptors.Printable(string(number)))
		}
		n = int64(max(-2*maxCount, min(2*maxCount, f)))
	}
	if err != nil || n > high || n < low {
		return 0, fmt.Errorf("must be between %s and %s, but is %s", lowName, highName, descriptors.Printable(string(number)))
	}
	return n, nil
}

func described(t json.Token) string {
	switch t := t.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(t)
	case string:
		return "a string"
	case json.Number:
		return "a number"
	default:
		if t == json.Delim('[') {
			return "a list"
		}
		return "an object"
	}
}
