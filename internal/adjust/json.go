package adjust

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// targetJSON is the form of a Target in Redis and in the admin API.
type targetJSON struct {
	Domain string `json:"domain,omitempty"`
	Limit  string `json:"limit"`
	// Key is for people, and KeyB64 has all bytes. A request has one of them. In answers and in Redis, Key is absent
	// if a value is not text, and target reads KeyB64.
	Key     []string `json:"key,omitempty"`
	KeyB64  [][]byte `json:"key_b64,omitempty"`
	AllKeys bool     `json:"all_keys,omitempty"`
	// Entry with Value selects all keys with that value. Value and ValueB64 are like Key and KeyB64.
	Entry    string `json:"entry,omitempty"`
	Value    string `json:"value,omitempty"`
	ValueB64 []byte `json:"value_b64,omitempty"`
}

func (t *Target) form() targetJSON {
	f := targetJSON{Domain: t.Domain, Limit: t.Limit, Key: t.Key, AllKeys: t.AllKeys, Entry: t.Entry, Value: t.Value}
	if !utf8.ValidString(t.Value) {
		f.Value, f.ValueB64 = "", []byte(t.Value)
	}
	for _, v := range t.Key {
		if f.KeyB64 = append(f.KeyB64, []byte(v)); !utf8.ValidString(v) {
			f.Key = nil
		}
	}
	return f
}

func (f *targetJSON) target() Target {
	t := Target{Domain: f.Domain, Limit: f.Limit, AllKeys: f.AllKeys, Entry: f.Entry, Value: f.Value}
	if f.ValueB64 != nil {
		t.Value = string(f.ValueB64)
	}
	if len(f.Key) > 0 && len(f.KeyB64) == 0 {
		t.Key = f.Key
	}
	for _, v := range f.KeyB64 {
		t.Key = append(t.Key, string(v))
	}
	return t
}

// adjustmentJSON is the form of an Adjustment in Redis and in the admin API.
type adjustmentJSON struct {
	ID string `json:"id,omitempty"`
	targetJSON
	Algorithm string `json:"algorithm,omitempty"`
	Change
	Expires time.Time `json:"expires"`
	Created time.Time `json:"created"`
	Author  string    `json:"author"`
	Reason  string    `json:"reason"`
	Words   string    `json:"words,omitempty"`
	Ignored string    `json:"ignored,omitempty"`
	Left    int64     `json:"left_s,omitempty"`
}

// MarshalJSON writes the form that UnmarshalJSON reads.
func (a Adjustment) MarshalJSON() ([]byte, error) {
	return json.Marshal(adjustmentJSON{
		ID: a.ID, targetJSON: a.Target.form(), Algorithm: KindName(a.Algorithm), Change: a.Change,
		Expires: moment(a.Expires), Created: moment(a.Created), Author: a.Author, Reason: a.Reason,
		Words: a.Words, Ignored: a.Ignored, Left: int64(a.Left / time.Second),
	})
}

// UnmarshalJSON returns the error of Check, too.
func (a *Adjustment) UnmarshalJSON(text []byte) error {
	var f adjustmentJSON
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	kind, err := parseKind(f.Algorithm)
	if err != nil {
		return err
	}
	*a = Adjustment{
		Target: f.target(), Change: f.Change, Algorithm: kind, Author: f.Author, Reason: f.Reason,
		Expires: algorithms.Micros(f.Expires.UnixMicro()), Created: algorithms.Micros(f.Created.UnixMicro()),
		Words: f.Words, Ignored: f.Ignored, Left: time.Duration(f.Left) * time.Second,
	}
	a.ID = a.Target.ID()
	return a.Check()
}

// KindName returns the name of k in JSON and in messages.
func KindName(k algorithms.Kind) string {
	switch k {
	case 0:
		return ""
	case algorithms.Guaranteed:
		return "token_bucket+guaranteed" // in a configuration it is a token_bucket too
	default:
		return k.String()
	}
}

func parseKind(name string) (algorithms.Kind, error) {
	if name == "" {
		return 0, nil
	}
	for _, k := range algorithms.Kinds() {
		if KindName(k) == name {
			return k, nil
		}
	}
	return 0, fmt.Errorf("unknown algorithm %q", descriptors.Printable(name))
}

func moment(t algorithms.Micros) time.Time { return time.UnixMicro(int64(t)).UTC() }

type proposalJSON struct {
	targetJSON
	Change
	For     Span      `json:"for,omitempty"`
	Until   time.Time `json:"until,omitzero"`
	Author  string    `json:"author"`
	Reason  string    `json:"reason"`
	Version *uint64   `json:"version,omitempty"`
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
	if f.Value != "" && f.ValueB64 != nil {
		return p, errors.New("give the value once: value, or value_b64 for bytes that are not text")
	}
	return Proposal{Target: f.target(), Change: f.Change, For: f.For, Until: f.Until, Author: f.Author, Reason: f.Reason, Expect: f.Version}, nil
}

// MarshalJSON writes the form that ParseProposal reads.
func (p Proposal) MarshalJSON() ([]byte, error) {
	f := proposalJSON{p.Target.form(), p.Change, p.For, p.Until, p.Author, p.Reason, p.Expect}
	f.Key = nil
	return json.Marshal(f)
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
