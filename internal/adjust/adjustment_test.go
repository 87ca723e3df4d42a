package adjust

import (
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func valid() *Adjustment {
	return &Adjustment{
		Target: Target{Domain: "edge", Limit: "send_message", Key: []string{"bob"}}, Change: Change{Rate: number(5), Capacity: number(7)},
		Created: 1, Expires: 1 + 3600*algorithms.Second, Author: "ann", Reason: "launch",
	}
}

func TestTheBoundsOfAnAdjustment(t *testing.T) {
	const most = algorithms.Micros(MaxFor / time.Microsecond)
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
		"long domain":               {func(a *Adjustment) { a.Target.Domain = text(maxName) }, ""},
		"too long a domain":         {func(a *Adjustment) { a.Target.Domain = text(maxName + 1) }, "bytes each"},
		"long limit":                {func(a *Adjustment) { a.Target.Limit = text(maxName) }, ""},
		"too long a limit":          {func(a *Adjustment) { a.Target.Limit = text(maxName + 1) }, "bytes each"},
		"all keys and a key":        {func(a *Adjustment) { a.Target.AllKeys = true }, "one key or for all keys"},
		"many values":               {func(a *Adjustment) { a.Target.Key = keys(maxKeyValues, "x") }, ""},
		"too many values":           {func(a *Adjustment) { a.Target.Key = keys(maxKeyValues+1, "x") }, "at most 256 values"},
		"long key":                  {func(a *Adjustment) { a.Target.Key = keys(2, text(maxKeyBytes/2)) }, ""},
		"too long a key":            {func(a *Adjustment) { a.Target.Key = append(keys(2, text(maxKeyBytes/2)), "x") }, "at most 4096 bytes"},
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

func TestAdjustmentsThatDifferAreNotEqual(t *testing.T) {
	if !valid().equal(valid()) {
		t.Fatal("two equal adjustments are not equal")
	}
	for name, change := range map[string]func(a *Adjustment){
		"ID":            func(a *Adjustment) { a.ID = "other" },
		"key":           func(a *Adjustment) { a.Target.Key = []string{"eve"} },
		"expiry":        func(a *Adjustment) { a.Expires++ },
		"creation":      func(a *Adjustment) { a.Created++ },
		"algorithm":     func(a *Adjustment) { a.Algorithm = algorithms.TokenBucket },
		"author":        func(a *Adjustment) { a.Author = "eve" },
		"reason":        func(a *Adjustment) { a.Reason = "other" },
		"rate":          func(a *Adjustment) { a.Change.Rate = number(6) },
		"no rate":       func(a *Adjustment) { a.Change.Rate = nil },
		"capacity":      func(a *Adjustment) { a.Change.Capacity = number(6) },
		"period":        func(a *Adjustment) { a.Change.Period++ },
		"factor":        func(a *Adjustment) { a.Change.Factor++ },
		"unlimited":     func(a *Adjustment) { a.Change.Unlimited = true },
		"block":         func(a *Adjustment) { a.Change.Block = true },
		"no adjustment": nil,
	} {
		var b *Adjustment
		if change != nil {
			b = valid()
			change(b)
		}
		if valid().equal(b) || b.equal(valid()) {
			t.Errorf("two adjustments with a different %s are equal", name)
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
	} {
		id, text := target.ID(), target.String()
		if seen[id] || shown[text] {
			t.Errorf("%+v has the ID %s and the text %s, which another target has", target, id, text)
		}
		seen[id], shown[text] = true, true
	}
	empty := Target{Domain: "d", Limit: "l", Key: []string{"a", ""}}
	if got, want := empty.KeyText(), `key a,""`; got != want {
		t.Errorf("the key is shown as %s, want %s", got, want)
	}
}

func TestAChangeIsDescribedCompletely(t *testing.T) {
	for want, c := range map[string]Change{
		"rate 5, capacity 7, period 90s": {Rate: number(5), Capacity: number(7), Period: 90 * algorithms.Second},
		"period 2d":                      {Period: 2 * algorithms.Day},
		"period 1500us":                  {Period: 1500},
		"period 3ms":                     {Period: 3000},
		"period 5m":                      {Period: 5 * minute},
		"period 7h":                      {Period: 7 * 60 * minute},
		"factor 0.05":                    {Factor: 50},
		"unlimited":                      {Unlimited: true},
		"block":                          {Block: true},
	} {
		if got := c.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestFactors(t *testing.T) {
	for text, want := range map[string]Factor{"10": 10_000, "0.5": 500, "1.001": 1001, "1000000": maxFactor, "0.001": 1} {
		if f, err := ParseFactor(text); f != want || err != nil || f.String() != text {
			t.Errorf("%s: got %d, %v, %s; want %d and the same text", text, f, err, f, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "1.", ".5", "0.0001", "1e3", "1000000.001", "99999999999999999999", "NaN"} {
		if f, err := ParseFactor(text); err == nil {
			t.Errorf("%q is %d; want an error", text, f)
		}
	}
}

func TestTargetsHaveTheirOwnIDs(t *testing.T) {
	seen := map[string]Target{}
	for _, target := range []Target{
		{Domain: "d", Limit: "l"}, {Domain: "d", Limit: "l", AllKeys: true}, {Domain: "d", Limit: "l", Key: []string{""}},
		{Domain: "d", Limit: "l", Key: []string{"a", "b"}}, {Domain: "d", Limit: "l", Key: []string{"ab"}}, {Domain: "d", Limit: "l", Key: []string{"a\x01b"}},
		{Domain: "dl"}, {Domain: "e", Limit: "l"}, {Domain: "d", Limit: "l", Key: []string{"all keys"}},
	} {
		id := target.ID()
		if other, twice := seen[id]; twice {
			t.Errorf("%+v and %+v have one ID", other, target)
		}
		seen[id] = target
	}
}
