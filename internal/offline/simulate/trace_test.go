package simulate

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type plainLine struct {
	Time        *int64            `json:"time_us"`
	Domain      string            `json:"domain"`
	Descriptors []plainDescriptor `json:"descriptors"`
	Limits      []plainLimit      `json:"limits"`
	Real        json.Number       `json:"real"`
	After       json.Number       `json:"settle_after_us"`
}

type plainDescriptor struct {
	Entries [][]string   `json:"entries"`
	Hits    *json.Number `json:"hits"`
}

type plainLimit struct {
	Name    *string      `json:"name"`
	Key     any          `json:"key"`
	Count   *json.Number `json:"count"`
	Reserve bool         `json:"reserve"`
}

// readPlain reads a line that trace.read accepts, with encoding/json. It ignores the outcome.
func readPlain(line string) (at algorithms.Micros, c *limiter.Call, err error) {
	d := json.NewDecoder(strings.NewReader(line))
	d.DisallowUnknownFields()
	d.UseNumber()
	var p plainLine
	if err := d.Decode(&p); err != nil {
		return 0, nil, err
	}
	if p.Time == nil {
		return 0, nil, errors.New("no time")
	}
	c = &limiter.Call{Request: limiter.Request{Domain: p.Domain}}
	for _, d := range p.Descriptors {
		one := limiter.Descriptor{Cost: plainCount(d.Hits)}
		for _, e := range d.Entries {
			one.Entries = append(one.Entries, descriptors.Entry{Key: e[0], Value: e[1]})
		}
		c.Descriptors = append(c.Descriptors, one)
	}
	for _, l := range p.Limits {
		charge := limiter.NamedCharge{Name: *l.Name, Count: plainCount(l.Count), Reserve: l.Reserve}
		switch key := l.Key.(type) {
		case string:
			charge.Key = []string{key}
		case []any:
			for _, k := range key {
				charge.Key = append(charge.Key, k.(string))
			}
		}
		c.Limits = append(c.Limits, charge)
	}
	return algorithms.Micros(*p.Time), c, nil
}

func plainCount(n *json.Number) int64 {
	if n == nil {
		return 1
	}
	i, err := n.Int64()
	switch {
	case err == nil:
		return i
	case strings.HasPrefix(n.String(), "-"):
		return math.MinInt64
	default:
		return math.MaxInt64
	}
}

// An empty list equals nil.
func same(a, b *limiter.Call) bool {
	normal := func(c *limiter.Call) limiter.Request {
		r := limiter.Request{Domain: c.Request.Domain}
		for _, d := range c.Descriptors {
			r.Descriptors = append(r.Descriptors, limiter.Descriptor{Entries: append([]descriptors.Entry{}, d.Entries...), Cost: d.Cost})
		}
		for _, l := range c.Limits {
			l.Key = append([]string{}, l.Key...)
			r.Limits = append(r.Limits, l)
		}
		return r
	}
	return reflect.DeepEqual(normal(a), normal(b))
}

// traces are lines in all forms that JSON allows.
var traces = []string{
	`{"time_us": 1, "domain": "edge", "descriptors": [{"entries": [["user_id","bob"]], "hits": 1}]}`,
	`{"time_us":1,"limits":[{"name":"send","key":["a","\u00e9\n"],"count":-3,"reserve":true}]}`,
	`{"time_us":1,"limits":[{"name":"s","count":10000000000000000000}],"domain":"d"} `,
	"\t{ \"limits\" :\r\n[ {\"reserve\": false, \"count\":-0 , \"name\":\"\\u0061\\\"\\\\\\/é\\ud83d\\ude00\" } ,{\"key\":\"k\",\"name\":\"\"}, {\"name\":\"x\",\"key\" : [ ] } ] ,\"time_us\":0 }\n",
	`{"descriptors":[{"hits":-9223372036854775809,"entries":[]},{"entries":[["",""],[ "a" , "b" ]],"hits":9223372036854775808}],"domain":"d","time_us":4503599627370496}`,
	`{"descriptors":[{"entries":[]}],"domain":"d","time_us":2}`,
	`{"descriptors":[{"entries":[],"hits":9223372036854775806},{"entries":[],"hits":999999999999999999}],"domain":"d","time_us":2}`,
	`{"limits":[{"name":"x"}],"time_us":3}`,
	`{"descriptors":[{"entries":[["a","\ud83d\ude00\ud800"]]}],"domain":"d","time_us":3}`, // a lone surrogate becomes U+FFFD
}

// The lines are read into one call, which must keep nothing of an earlier line.
func TestTraceAgreesWithEncodingJSON(t *testing.T) {
	reader, call := &trace{}, &limiter.Call{}
	for _, line := range traces {
		wantAt, want, err := readPlain(line)
		if err != nil {
			t.Fatalf("encoding/json rejects %s: %v", line, err)
		}
		call.Reset()
		if at, _, err := reader.read(line, call); err != nil || at != wantAt || !same(call, want) {
			t.Errorf("%s: got %v\ngot  %+v\nwant %+v", line, err, call.Request, want.Request)
		}
	}
}

func FuzzTrace(f *testing.F) {
	for _, line := range traces {
		f.Add(line)
	}
	f.Add("{\"time_us\":1,\"limits\":[{\"name\":\"\xff\"}]}")
	f.Fuzz(func(t *testing.T, line string) {
		var c limiter.Call
		at, _, err := (&trace{}).read(line, &c)
		if err != nil {
			return
		}
		if !json.Valid([]byte(line)) {
			t.Fatalf("accepted %q, which is not JSON", line)
		}
		wantAt, want, err := readPlain(line)
		if err != nil {
			t.Fatalf("accepted %q, which encoding/json rejects: %v", line, err)
		}
		if at != wantAt || !same(&c, want) {
			t.Fatalf("%q:\ngot  %+v\nwant %+v", line, c.Request, want.Request)
		}
	})
}

func TestTraceRefuses(t *testing.T) {
	const head = `{"time_us":1,"domain":"edge","descriptors":`
	for _, test := range []struct{ line, want string }{
		{`[]`, `column 1: expected an object, found "["`},
		{`{"time_us":1.5}`, `column 12: expected a whole number, found "1.5"`},
		{`{"time_us":1e3}`, `expected a whole number`},
		{`{"time_us":"1"}`, `expected a whole number, found "\"1\""`},
		{`{"time_us":01}`, `column 13: invalid character '1' after object value`},
		{`{"time_us":1,"time_us":2}`, `time_us occurs twice; write it once`},
		{`{"Time_us":1}`, `unknown field "Time_us"`},
		{head + `[{"entries":[["a","b"]]}]`, `unexpected EOF`},
		{head + `[{"entries":[["a","b"]]}]} {}`, `expected the end of the line, found "{"`},
		{head + `[{"entries":[["a","b"]]}]}}`, `invalid character '}'`},
		{head + `[{"entries":[["a"]]}]}`, `this one is shorter`},
		{head + `[{"entries":[["a","b","c"]]}]}`, `this one is longer`},
		{head + `[{"hits":1}]}`, `a descriptor without entries`},
		{head + `[]}`, `has neither descriptors nor limits`},
		{head + `null}`, `expected a list, found "null"`},
		{head + `[{"entries":[["a","b"]]}],"limits":[{"name":"x"}]}`, `has descriptors and limits`},
		{`{"time_us":1,"descriptors":[{"entries":[]}]}`, `domain is missing`},
		{`{"domain":"edge","descriptors":[{"entries":[]}]}`, `time_us is missing`},
		{`{"time_us":-1,"limits":[{"name":"x"}]}`, `time_us must be between 0 and 4503599627370496, but is -1`},
		{`{"time_us":4503599627370497,"limits":[{"name":"x"}]}`, `time_us must be between`},
		{`{"time_us":1,"limits":[{"key":"x"}]}`, `a limit without a name`},
		{`{"time_us":1,"limits":[{"name":"x","reserve":1}]}`, `expected true or false, found "1"`},
		{`{"time_us":1,"limits":[{"name":"x","key":7}]}`, `expected a string, found "7"`},
		{`{"time_us":1,"limits":[{"name":"x"},]}`, `invalid character ','`},
		{`{"time_us":1,"limits":[{"name":"\x"}]}`, "invalid escape sequence `\\x`"},
		{"{\"time_us\":1,\"limits\":[{\"name\":\"a\tb\"}]}", `invalid character '\t' in string`},
		{`{"time_us":1,"limits":[{"name":"x`, `unexpected EOF`},
		{`{"time_us":12`, "column 14: unexpected EOF"},
		{`{"time_us":-`, "unexpected EOF"},
		{`{"time_us" 12}`, "(expecting ':')"},
		{`{"time_us":1,"limits"`, "unexpected EOF"},
		{`{"time_us":1,"limits":[{"name":"x","reserve":true,"reserve":true}]}`, "reserve occurs twice"},
		{`{"time_us":1,"limits":[{"name":"x"} {"name":"x"}]}`, "(expecting ',' or ']')"},
	} {
		var c limiter.Call
		if _, _, err := (&trace{}).read(test.line, &c); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s:\ngot  %v\nwant %s", test.line, err, test.want)
		}
	}
}

// Members of an access log that are not used must be JSON too.
func FuzzSkip(f *testing.F) {
	for _, value := range []string{
		`1`, `-1.5e3`, `null`, `true`, `"a]"`, `{"a":["}",{"b":"\""}]}`, `[]`, `{"a": [1, "]", {"b": null}]} x`,
		`nul`, `01`, ``, `{"a"}`, `[1,]`, `["a`, `{"a":[}`, "[\"\x01\"]", "\"\xff\"",
	} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		line := `{"x":` + value + `,"start_time":"2016-04-15T20:17:00Z"}`
		_, err := newAccessLog(Envoy, Templates{}, "edge", false).startOf(line)
		if want := json.Valid([]byte(line)); (err == nil) != want {
			t.Errorf("%q: got %v; want it accepted: %t", value, err, want)
		}
	})
}
