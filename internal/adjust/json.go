package adjust

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// adjustmentJSON is the form of an Adjustment in Redis, in files and in the admin API.
type adjustmentJSON struct {
	ID     string `json:"id,omitempty"`
	Domain string `json:"domain"`
	Limit  string `json:"limit"`
	// Key is for people, and absent if a value is not text. UnmarshalJSON reads KeyB64, which has all values.
	Key       []string `json:"key,omitempty"`
	KeyB64    [][]byte `json:"key_b64,omitempty"`
	AllKeys   bool     `json:"all_keys,omitempty"`
	Algorithm string   `json:"algorithm,omitempty"`
	changeJSON
	Expires time.Time `json:"expires"`
	Created time.Time `json:"created"`
	Author  string    `json:"author"`
	Reason  string    `json:"reason"`
	shownJSON
}

// shownJSON has the fields that a Shown adds to an Adjustment. They are not stored.
type shownJSON struct {
	Words   string `json:"words,omitempty"`
	Ignored string `json:"ignored,omitempty"`
	Left    int64  `json:"left_s,omitempty"`
}

type changeJSON struct {
	Rate      *int64      `json:"rate,omitempty"`
	Capacity  *int64      `json:"capacity,omitempty"`
	Period    string      `json:"period,omitempty"`
	Factor    json.Number `json:"factor,omitempty"`
	Unlimited bool        `json:"unlimited,omitempty"`
	Block     bool        `json:"block,omitempty"`
}

func (c *Change) form() changeJSON {
	f := changeJSON{Rate: c.Rate, Capacity: c.Capacity, Unlimited: c.Unlimited, Block: c.Block}
	if c.Period != 0 {
		f.Period = spanText(c.Period)
	}
	if c.Factor != 0 {
		f.Factor = json.Number(c.Factor.String())
	}
	return f
}

func (f *changeJSON) change() (c Change, err error) {
	c = Change{Rate: f.Rate, Capacity: f.Capacity, Unlimited: f.Unlimited, Block: f.Block}
	if f.Period != "" {
		if c.Period, err = ParseSpan(f.Period); err != nil {
			return c, fmt.Errorf("period: %w", err)
		}
	}
	if f.Factor != "" {
		if c.Factor, err = ParseFactor(string(f.Factor)); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (a Adjustment) MarshalJSON() ([]byte, error) { return json.Marshal(a.form()) }

func (a *Adjustment) form() adjustmentJSON {
	f := adjustmentJSON{
		ID: a.ID, Domain: a.Target.Domain, Limit: a.Target.Limit, AllKeys: a.Target.AllKeys, Algorithm: KindName(a.Algorithm),
		changeJSON: a.Change.form(), Expires: moment(a.Expires), Created: moment(a.Created), Author: a.Author, Reason: a.Reason,
	}
	text := true
	for _, v := range a.Target.Key {
		f.KeyB64 = append(f.KeyB64, []byte(v))
		text = text && utf8.ValidString(v)
	}
	if text {
		f.Key = a.Target.Key
	}
	return f
}

// UnmarshalJSON does not check the adjustment; Check does.
func (a *Adjustment) UnmarshalJSON(text []byte) error {
	var f adjustmentJSON
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	change, err := f.change()
	if err != nil {
		return err
	}
	kind, err := parseKind(f.Algorithm)
	if err != nil {
		return err
	}
	*a = Adjustment{
		Target: Target{Domain: f.Domain, Limit: f.Limit, AllKeys: f.AllKeys}, Change: change, Algorithm: kind,
		Expires: algorithms.Micros(f.Expires.UnixMicro()), Created: algorithms.Micros(f.Created.UnixMicro()),
		Author: f.Author, Reason: f.Reason,
	}
	for _, v := range f.KeyB64 {
		a.Target.Key = append(a.Target.Key, string(v))
	}
	a.ID = a.Target.ID()
	return nil
}

// guaranteed is the name of algorithms.Guaranteed in JSON. In a configuration it is a token_bucket too.
const guaranteed = "token_bucket+guaranteed"

// KindName returns the name of k in JSON.
func KindName(k algorithms.Kind) string {
	switch k {
	case 0:
		return ""
	case algorithms.Guaranteed:
		return guaranteed
	default:
		return k.String()
	}
}

func parseKind(name string) (algorithms.Kind, error) {
	for k := range algorithms.Guaranteed + 1 {
		if KindName(k) == name {
			return k, nil
		}
	}
	return 0, fmt.Errorf("unknown algorithm %q", descriptors.Printable(name))
}

func moment(t algorithms.Micros) time.Time { return time.UnixMicro(int64(t)).UTC() }

type proposalJSON struct {
	Domain  string   `json:"domain"`
	Limit   string   `json:"limit"`
	Key     []string `json:"key"`
	KeyB64  [][]byte `json:"key_b64"`
	AllKeys bool     `json:"all_keys"`
	changeJSON
	For     string    `json:"for"`
	Until   time.Time `json:"until"`
	Author  string    `json:"author"`
	Reason  string    `json:"reason"`
	Version *uint64   `json:"version"`
}

// ParseProposal reads a Proposal from JSON. The error names the mistake and the correction.
func ParseProposal(text []byte) (p Proposal, err error) {
	var f proposalJSON
	if err = decode(text, &f, "the JSON of an adjustment"); err != nil {
		return p, err
	}
	if f.Key != nil && f.KeyB64 != nil {
		return p, errors.New("give the key once: key, or key_b64 for bytes that are not text")
	}
	p = Proposal{
		Target: Target{Domain: f.Domain, Limit: f.Limit, Key: f.Key, AllKeys: f.AllKeys},
		Until:  f.Until, Author: f.Author, Reason: f.Reason, Expect: f.Version,
	}
	for _, v := range f.KeyB64 {
		p.Target.Key = append(p.Target.Key, string(v))
	}
	if p.Change, err = f.change(); err != nil {
		return p, err
	}
	if f.For != "" {
		span, err := ParseSpan(f.For)
		if err != nil {
			return p, fmt.Errorf("for: %w", err)
		}
		p.For = Duration(span)
	}
	return p, nil
}

// Removal is the body of a request that deletes an adjustment.
type Removal struct {
	Author  string  `json:"author"`
	Reason  string  `json:"reason"`
	Version *uint64 `json:"version"`
}

// ParseRemoval reads a Removal from JSON. The error names the mistake and the correction.
func ParseRemoval(text []byte) (r Removal, err error) {
	return r, decode(text, &r, "JSON with author, reason and version")
}

func decode(text []byte, into any, what string) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("the body is not %s: %w", what, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the body has text after the JSON object; remove it")
	}
	return nil
}

// MarshalJSON writes the form that ParseProposal reads.
func (p Proposal) MarshalJSON() ([]byte, error) {
	f := struct {
		Domain  string   `json:"domain,omitempty"`
		Limit   string   `json:"limit"`
		KeyB64  [][]byte `json:"key_b64,omitempty"`
		AllKeys bool     `json:"all_keys,omitempty"`
		changeJSON
		For     string     `json:"for,omitempty"`
		Until   *time.Time `json:"until,omitempty"`
		Author  string     `json:"author"`
		Reason  string     `json:"reason"`
		Version *uint64    `json:"version,omitempty"`
	}{
		Domain: p.Target.Domain, Limit: p.Target.Limit, AllKeys: p.Target.AllKeys, changeJSON: p.Change.form(),
		Author: p.Author, Reason: p.Reason, Version: p.Expect,
	}
	for _, v := range p.Target.Key {
		f.KeyB64 = append(f.KeyB64, []byte(v))
	}
	if p.For != 0 {
		f.For = spanText(algorithms.Micros(p.For / time.Microsecond))
	}
	if !p.Until.IsZero() {
		f.Until = &p.Until
	}
	return json.Marshal(f)
}

// Duration converts a span to a time.Duration. A span of more than 100 years becomes 100 years.
func Duration(span algorithms.Micros) time.Duration {
	return time.Duration(min(span, 36_500*algorithms.Day)) * time.Microsecond
}

// spanText formats a span in the form that ParseSpan reads, as a whole number of the largest possible unit.
func spanText(d algorithms.Micros) string {
	for _, unit := range []struct {
		name   string
		length algorithms.Micros
	}{{"d", algorithms.Day}, {"h", 3600 * algorithms.Second}, {"m", 60 * algorithms.Second}, {"s", algorithms.Second}, {"ms", 1000}} {
		if d%unit.length == 0 {
			return fmt.Sprintf("%d%s", d/unit.length, unit.name)
		}
	}
	return fmt.Sprintf("%dus", d)
}

// ParseSpan parses a span of time in the form of configurations: 500ms, 30s, 1h30m, 2d.
func ParseSpan(text string) (algorithms.Micros, error) {
	span, err := duration.Parse(text)
	if err != nil {
		return 0, fmt.Errorf("%q %w", descriptors.Printable(text), err)
	}
	return span, nil
}
