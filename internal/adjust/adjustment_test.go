package adjust

import (
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func valid() *Adjustment {
	return &Adjustment{
		Target: Target{Domain: "edge", Limit: "send_message", Key: []string{"bob"}}, Change: Change{Rate: number(5), Capacity: number(7)},
		Created: 1, Expires: 1 + 3600*algorithms.Second, Author: "ann", Reason: "launch",
	}
}

func TestTheBoundsOfAnAdjustment(t *testing.T) {
	const most = algorithms.Micros(MaxFor)
	text := func(n int) string { return strings.Repeat("x", n) }
	keys := func(n int, value string) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = value
		}
		return list
	}
	for name, test := range map[string]struct {
		change  func(a *Adjustment)
		mistake string // "" means none
	}{
		"valid":                     {func(*Adjustment) {}, ""},
		"lasts no time":             {func(a *Adjustment) { a.Expires = a.Created }, "in the past"},
		"lasts 30 days":             {func(a *Adjustment) { a.Expires = a.Created + most }, ""},
		"lasts more":                {func(a *Adjustment) { a.Expires = a.Created + most + 1 }, "30 days"},
		"no domain":                 {func(a *Adjustment) { a.Target.Domain = "" }, "name the domain and the limit"},
		"no limit":                  {func(a *Adjustment) { a.Target.Limit = "" }, "name the domain and the limit"},
		"all keys and a key":        {func(a *Adjustment) { a.Target.AllKeys = true }, "one key or for all keys"},
		"one value":                 {func(a *Adjustment) { a.Target.Key, a.Target.Entry, a.Target.Value = nil, "tenant", "evil" }, ""},
		"one value and a key":       {func(a *Adjustment) { a.Target.Entry = "tenant" }, "one of the three"},
		"a value of no entry":       {func(a *Adjustment) { a.Target.Value = "evil" }, "name the entry"},
		"long key":                  {func(a *Adjustment) { a.Target.Key = keys(2, text(maxKey/2-1)) }, ""},
		"too long a key":            {func(a *Adjustment) { a.Target.Key = append(keys(2, text(maxKey/2-1)), "") }, "at most 4096 bytes"},
		"nothing":                   {func(a *Adjustment) { a.Change = Change{} }, "state what to change"},
		"factor and block":          {func(a *Adjustment) { a.Change = Change{Factor: one, Block: true} }, "exclude each other"},
		"largest factor":            {func(a *Adjustment) { a.Change = Change{Factor: maxFactor} }, ""},
		"too large a factor":        {func(a *Adjustment) { a.Change = Change{Factor: maxFactor + 1} }, "the factor"},
		"negative factor":           {func(a *Adjustment) { a.Change = Change{Factor: -1} }, "the factor"},
		"rate 1":                    {func(a *Adjustment) { a.Change.Rate = number(1) }, ""},
		"rate 0":                    {func(a *Adjustment) { a.Change.Rate = number(0) }, "rate must be at least 1"},
		"capacity 0":                {func(a *Adjustment) { a.Change.Capacity = number(0) }, ""},
		"negative capacity":         {func(a *Adjustment) { a.Change.Capacity = number(-1) }, "capacity must not be negative"},
		"negative period":           {func(a *Adjustment) { a.Change.Period = -1 }, "period must be longer"},
		"blank author":              {func(a *Adjustment) { a.Author = " " }, "author is missing"},
		"long author":               {func(a *Adjustment) { a.Author = text(maxAuthor) }, ""},
		"too long an author":        {func(a *Adjustment) { a.Author = text(maxAuthor + 1) }, "author may have"},
		"no reason":                 {func(a *Adjustment) { a.Reason = "" }, "reason is missing"},
		"long reason":               {func(a *Adjustment) { a.Reason = text(maxReason) }, ""},
		"too long a reason":         {func(a *Adjustment) { a.Reason = text(maxReason + 1) }, "reason may have"},
		"two lines":                 {func(a *Adjustment) { a.Reason = "a\nb" }, "reason must be plain text"},
		"invalid UTF-8 as a reason": {func(a *Adjustment) { a.Reason = "a\xff" }, "reason must be plain text"},
	} {
		a := valid()
		test.change(a)
		err := a.Check()
		if ok := err == nil; ok != (test.mistake == "") || !ok && !strings.Contains(err.Error(), test.mistake) {
			t.Errorf("%s: got the error %v; want one with %q, or none if that is empty", name, err, test.mistake)
		}
	}
}

func TestEachTargetHasItsOwnIDAndText(t *testing.T) {
	seen, shown := map[string]bool{}, map[string]bool{}
	for _, target := range []Target{
		{Domain: "d", Limit: "l"},
		{Domain: "d", Limit: "l", AllKeys: true},
		{Domain: "d", Limit: "l", Key: []string{""}},
		{Domain: "d", Limit: "l", Key: []string{"", ""}},
		{Domain: "d", Limit: "l", Key: []string{"ab", "c"}},
		{Domain: "d", Limit: "l", Key: []string{"a", "bc"}},
		{Domain: "dl", Limit: "l"},
		{Domain: "d", Limit: "ll"},
		{Domain: "d", Limit: "l", Key: []string{"ab"}},
		{Domain: "d", Limit: "l", Key: []string{"all keys"}},
		{Domain: "d", Limit: "l", Entry: "tenant", Value: "evil"},
		{Domain: "d", Limit: "l", Entry: "tenant"},
		{Domain: "d", Limit: "l", Entry: "tenante", Value: "vil"},
	} {
		id, text := target.ID(), target.String()
		if seen[id] || shown[text] {
			t.Errorf("%+v has the ID %s and the text %s, which another target has", target, id, text)
		}
		seen[id], shown[text] = true, true
	}
	empty := Target{Domain: "d", Limit: "l", Key: []string{"a", ""}}
	if got, want := empty.String(), `limit l of domain d, key a,""`; got != want {
		t.Errorf("the key is shown as %s, want %s", got, want)
	}
}

func TestFactors(t *testing.T) {
	for text, want := range map[string]Factor{"10": 10_000, "0.5": 500, "1.001": 1001, "999999.999": 999_999_999, "1000000": maxFactor, "0.001": 1} {
		var f Factor
		if err := f.UnmarshalText([]byte(text)); f != want || err != nil || f.String() != text {
			t.Errorf("%s: got %d, %v, %s; want %d and the same text", text, f, err, f, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "0.0001", "1.0005", "1000000.001", "99999999999999999999", "NaN", "Inf"} {
		var f Factor
		if err := f.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %d; want an error", text, f)
		}
	}
}
