package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Limits with the same unit and time zone share one Calendar.
func TestTheReferenceFormHasPenaltiesAndCalendars(t *testing.T) {
	s := good(t, Options{}, `
domain: d
descriptors:
  - key: a
    rate_limit: {unit: day, requests_per_unit: 5, penalty: {after: 3, for: 1m, max: 1h}}
  - key: b
    rate_limit: {unit: WEEK, requests_per_unit: 5, time_zone: Europe/Berlin, unit_multiplier: 1}
  - key: c
    rate_limit: {unit: week, requests_per_unit: 6, time_zone: Europe/Berlin}
  - key: d
    rate_limit: {unit: week, requests_per_unit: 5, time_zone: America/Lima}
`)
	a, b, c, d := one(t, s, "d", "a=1"), one(t, s, "d", "b=1"), one(t, s, "d", "c=1"), one(t, s, "d", "d=1")
	if want := (algorithms.Penalty{After: 3, For: 60 * algorithms.Second, Max: 3600 * algorithms.Second}); a.Limit.Penalty != want {
		t.Errorf("the penalty is %+v, want %+v", a.Limit.Penalty, want)
	}
	for name, p := range map[string]*descriptors.Policy{"Europe/Berlin": b, "America/Lima": d} {
		if p.Limit.Calendar == nil || p.Limit.Calendar.Zone != name || p.Limit.Calendar.Unit != "week" {
			t.Errorf("the calendar is %+v, want weeks in %s", p.Limit.Calendar, name)
		}
	}
	if b.Limit.Calendar != c.Limit.Calendar {
		t.Error("two limits with one time zone have different calendars, so that they share nothing")
	}
}

func TestBoundsOfOverridesAreCompiled(t *testing.T) {
	const bound = "max_override: {unit: day, requests_per_unit: 5}\n"
	whole := good(t, Options{}, "domain: d\n"+bound+"descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n").Domains["d"]
	if !whole.Bounded || whole.MaxOverride == nil || !whole.MaxOverride.Whole || whole.MaxOverride.Limit.Rate != 5 {
		t.Errorf("the domain has %+v, bounded: %v; want a bound of 5 for whole descriptors", whole.MaxOverride, whole.Bounded)
	}
	part := good(t, Options{}, "domain: d\ndescriptors:\n  - key: k\n    "+bound).Domains["d"]
	if m := part.Policies[0]; !part.Bounded || part.MaxOverride != nil || m.Whole || len(m.Open) != 1 || m.Name != "k#max_override" {
		t.Errorf("the descriptor has %+v, bounded: %v; want a bound for each value of k", m, part.Bounded)
	}
	for setting, want := range map[string]string{
		"settle: {estimate: 5}": "settle cannot be combined with max_override",
		"then: other":           "then cannot be combined with max_override",
	} {
		text := bad(t, Options{}, "domain: d\nmax_override: {algorithm: fixed_window, rate: 100, period: 1h, "+setting+"}\n")
		if !strings.Contains(text, want) {
			t.Errorf("%s: got %s; want %q", setting, text, want)
		}
	}
}

func TestADomainHasTheResponseBodyOfItsDocuments(t *testing.T) {
	const limits = "descriptors: [{key: %s, rate_limit: {unit: day, requests_per_unit: 1, unit_name: tokens}}]\n"
	d := good(t, Options{}, "domain: d\ndeny_body: openai\nhttp_headers: openai\n"+fmt.Sprintf(limits, "a"), "domain: d\n"+fmt.Sprintf(limits, "b")).Domains["d"]
	if d.DenyBody == (good(t, Options{}, "domain: d\n"+fmt.Sprintf(limits, "a")).Domains["d"].DenyBody) || d.Headers == nil || !d.Headers.OpenAI {
		t.Errorf("the domain has the body %v and the headers %+v; want those of OpenAI", d.DenyBody, d.Headers)
	}
}

func TestABadShareIsReportedOnce(t *testing.T) {
	text := bad(t, Options{}, "domain: d\non_backend_failure: local\nlocal_share: 200%\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n")
	if strings.Count(text, "\n") != 0 || !strings.Contains(text, "local_share") {
		t.Errorf("got\n%s\nwant one problem, with local_share", text)
	}
}

func TestTheCharactersOfALimitsName(t *testing.T) {
	for name, want := range map[string]string{
		" ": "", "~": "", "a\x7f": "not printable", "a\x1f": "not printable", "é": "not printable", "a/b": "a \"/\"", "": "is empty",
		strings.Repeat("x", 128): "", strings.Repeat("x", 129): "the maximum is 128",
	} {
		if got := badName(name); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestAnInlineLimitHasTheSettingsOfItsDomain(t *testing.T) {
	const file = "domain: d\non_backend_failure: local\nlocal_share: 50%\nlimits:\n  l: {algorithm: fixed_window, rate: 100, period: 1h}\n"
	d := good(t, Options{}, file).Domains["d"]
	const numbers = `{"algorithm": "fixed_window", "rate": 10, "period": "1h"}`
	p, err := Inline(d, "l", []byte(numbers))
	if err != nil {
		t.Fatal(err)
	}
	named := d.Named["l"]
	if p.OnFailure != descriptors.Local || p.Extra().LocalShare != 0.5 || p.Extra().Local == nil || p.Extra().Local.Rate != 5 {
		t.Errorf("got %v with %+v; want local decisions on half of the limit", p.OnFailure, p.Extra())
	}
	if p.Index != -1 || p.Place != (descriptors.Place{}) || p.StatKey != "" || p.Prefix == named.Prefix || p.Owner == named.Owner {
		t.Errorf("got %+v; want no number, no place, and other buckets than the named limit", p)
	}
	for _, key := range []string{"then", "max_delay", "penalty", "name", "time_zone"} {
		text := strings.Replace(numbers, "{", `{"`+key+`": "1s", `, 1)
		if _, err := Inline(d, "l", []byte(text)); err == nil || !strings.Contains(err.Error(), "unknown field") {
			t.Errorf("%s: got %v; want an unknown field", key, err)
		}
	}
}

// A Redis Cluster charges a group of limits in several steps if they can be in different slots. There must be no warning
// about limits that deny nothing, are charged one by one, or have one slot because of hash_tag.
func TestWarningsAboutSlots(t *testing.T) {
	const plain = "{unit: day, requests_per_unit: 1}"
	for name, test := range map[string]struct {
		second, settings string
		warned           bool
	}{
		"two limits":   {"{unit: hour, requests_per_unit: 1}", "", true},
		"shadow mode":  {"{unit: hour, requests_per_unit: 1, shadow_mode: true}", "", false},
		"quota mode":   {"{unit: hour, requests_per_unit: 1, quota_mode: true}", "", false},
		"unlimited":    {"{unlimited: true}", "", false},
		"one by one":   {"{unit: hour, requests_per_unit: 1}", "consume: each\n", false},
		"one slot":     {"{unit: hour, requests_per_unit: 1}", "hash_tag: domain\n", false},
		"slot of k":    {"{unit: hour, requests_per_unit: 1}", "hash_tag: entry:k\n", false},
		"slot of none": {"{unit: hour, requests_per_unit: 1}", "hash_tag: entry:other\n", true},
	} {
		_, problems := Compile(numbered([]string{"domain: d\n" + test.settings + "descriptors: [{key: k, rate_limit: [" + plain + ", " + test.second + "]}]\n"}), Options{Cluster: true})
		if got := strings.Contains(problems.Error(), "in several steps"); got != test.warned || problems.Bad() {
			t.Errorf("%s: warned: %v, want %v; the problems are %s", name, got, test.warned, problems.Error())
		}
	}
	if text := bad(t, Options{}, "domain: d\nhash_tag: 'entry:'\n"); !strings.Contains(text, "hash_tag must be") {
		t.Errorf("an entry without a key: got %s; want a mistake", text)
	}
}

func TestTheSlotOfALaterValue(t *testing.T) {
	s := good(t, Options{}, `
domain: d
hash_tag: entry:user
descriptors:
  - key: path
    descriptors:
      - key: method
        value: GET
        descriptors:
          - key: user
            rate_limit: {unit: day, requests_per_unit: 1}
  - key: any*
    rate_limit: {unit: day, requests_per_unit: 1}
`)
	p := one(t, s, "d", "path=/a,method=GET,user=ann")
	if want := (descriptors.Slot{Value: 2}); p.Extra().Slot != want {
		t.Errorf("the slot is %+v, want that of the second value", p.Extra().Slot)
	}
	if p := one(t, s, "d", "anything=1"); !p.Whole || p.Extra().Slot != (descriptors.Slot{Entry: "user"}) {
		t.Errorf("the slot of %+v is %+v, want that of the entry user, for a whole descriptor", p, p.Extra().Slot)
	}
}

// Domain b has a mistake and keeps its last version. Together with the changed domain a it has more than MaxLimits
// limits. The configuration in use must still have at most MaxLimits, and a message must state the problem.
func TestKeptDomainsCountTowardsTheMostLimits(t *testing.T) {
	k := newKeeper(t)
	k.Keeper = NewKeeper(Options{MaxLimits: 3})
	two := func(domain string) string {
		return "domain: " + domain + "\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}, {key: b, rate_limit: {unit: day, requests_per_unit: 2}}]\n"
	}
	if got, stale, problems := k.load("a.yaml="+of("a", 7), "b.yaml="+two("b")); got != "a 7; b 1 2" || stale != "" {
		t.Fatalf("got %q, stale %q, %v; want both domains", got, stale, problems)
	}
	got, stale, problems := k.load("a.yaml="+two("a"), "b.yaml="+of("b", -1))
	limits := 0
	for _, b := range k.used {
		limits += len(b.Policies)
	}
	if limits > 3 || !strings.Contains(problems.Error(), "more than 3 limits") {
		t.Errorf("got %q, stale %q, with %d limits; the problems are %s; want at most 3, and a message about it", got, stale, limits, problems.Error())
	}
}

// The function within determines which domains are below an unreadable folder, so that they keep their last version.
func TestADomainBelowAnUnreadableFolderIsKept(t *testing.T) {
	for file, root := range map[string]string{"a/b/c.yaml": "a", "a/b.yaml": "a/b.yaml", "a/..b.yaml": "a"} {
		if !within(filepath.FromSlash(file), filepath.FromSlash(root)) {
			t.Errorf("%s is not below %s", file, root)
		}
	}
	for file, root := range map[string]string{"ab/c.yaml": "a", "c.yaml": "a", "a.yaml": "a/b"} {
		if within(filepath.FromSlash(file), filepath.FromSlash(root)) {
			t.Errorf("%s is below %s", file, root)
		}
	}
}

// A warning is due if the units that are added during the lease are more than 5 % of the capacity.
func TestALeaseIsAPartOfTheCapacity(t *testing.T) {
	const file = "domain: d\nlimits:\n  l: {algorithm: token_bucket, rate: 60, period: 1m, capacity: %d, lease: {max: 10%%, for: 2s}}\n"
	for capacity, warned := range map[int]bool{1000: false, 20: true} {
		s, problems := Compile(numbered([]string{fmt.Sprintf(file, capacity)}), Options{})
		if problems.Bad() {
			t.Fatal(problems)
		}
		lease := s.Domains["d"].Named["l"].Extra().Lease
		if got := strings.Contains(problems.Error(), "during a lease"); lease.Most != int64(capacity)/10 || got != warned {
			t.Errorf("capacity %d: the lease has %d units, warned: %v; want %d, %v", capacity, lease.Most, got, capacity/10, warned)
		}
	}
}

func TestALongNameIsNotSuggestedForAnyWord(t *testing.T) {
	long := strings.Repeat("d", 250)
	text := bad(t, Options{}, "domain: "+long+"\nauth: {routes: [{domain: other, descriptors: [[{key: k, from: path}]]}]}\n")
	if strings.Contains(text, "did you mean") {
		t.Errorf("got %s; want no suggestion", text)
	}
}

// In 32 bits, 4294967298 would be 2, which is valid.
func TestTooManyShardsAreAMistake(t *testing.T) {
	text := bad(t, Options{}, "domain: d\nlimits:\n  l: {algorithm: fixed_window, rate: 100, period: 1h, shards: 4294967298}\n")
	if !strings.Contains(text, "shards") {
		t.Errorf("got %s; want a mistake of shards", text)
	}
}

func TestBoundsOfLimitsAndAuth(t *testing.T) {
	limit := func(kind, more string) string {
		return "domain: d\nlimits:\n  l: {algorithm: " + kind + ", rate: 100, period: 1h, " + more + "}\n"
	}
	times := func(n string) string {
		return "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, unit_multiplier: " + n + ", requests_per_unit: 1}}]\n"
	}
	prefix := func(bits string) string { return "domain: d\nauth: {ipv6_prefix: " + bits + "}\n" }
	lease := func(span string) string { return limit("fixed_window", "lease: {max: 5%, for: "+span+"}") }
	for name, test := range map[string]struct {
		text, want string // "" means that there is no mistake
	}{
		"ipv6_prefix 1":                {prefix("1"), ""},
		"ipv6_prefix 128":              {prefix("128"), ""},
		"ipv6_prefix 0":                {prefix("0"), "ipv6_prefix must be from 1 to 128"},
		"ipv6_prefix 129":              {prefix("129"), "ipv6_prefix must be from 1 to 128"},
		"a lease of 1 ms":              {lease("1ms"), ""},
		"a lease of 999 us":            {lease("999us"), "for must be between 1ms and 1m"},
		"a lease of 1 m":               {lease("1m"), ""},
		"a lease of 60,001 ms":         {lease("60001ms"), "for must be between 1ms and 1m"},
		"unit_multiplier 1":            {times("1"), ""},
		"unit_multiplier 0":            {times("0"), "unit_multiplier must be between 1"},
		"unit_multiplier 4294967296":   {times("4294967296"), "unit_multiplier must be between 1"},
		"a start in microseconds":      {limit("fixed_window", "start: 2026-01-01T00:00:00.000001Z"), ""},
		"a start in nanoseconds":       {limit("fixed_window", "start: 2026-01-01T00:00:00.000001001Z"), "must not be finer than a microsecond"},
		"a rate without digits":        {"domain: d\nlimits: {l: {algorithm: fixed_window, rate: !!int '', period: 1h}}\n", "rate must be a whole number"},
		"an initial value of 0":        {limit("token_bucket", "initial: 0"), ""},
		"share_threshold at any value": {"domain: d\ndescriptors: [{key: k, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}]\n", "share_threshold can only be used with wildcard values"},
		"share_threshold at a pattern": {"domain: d\ndescriptors: [{key: k, value: 'a*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}]\n", ""},
		"the key of a settlement":      {limit("fixed_window", "settle: {estimate: 5}") + "descriptors: [{key: settle_end, limit: l}]\n", `descriptors with the key "settle_end" settle reservations`},
		"many lists side by side":      {"domain: d\ndescriptors:\n" + strings.Repeat("  - {key: k, descriptors: [{key: l}]}\n", 3*maxDepth), "duplicate descriptor"},
	} {
		_, problems := Compile(numbered([]string{test.text}), Options{})
		if got := problems.Error(); problems.Bad() != (test.want != "") || !strings.Contains(got, test.want) || strings.Contains(got, "nested more") {
			t.Errorf("%s: got %.400s; want %q", name, got, test.want)
		}
	}
}

func TestAMistakeIsReportedOnce(t *testing.T) {
	const entry = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\nauth: {routes: [{descriptors: [[{key: k, from: %s}]]}]}\n"
	for text, want := range map[string]string{
		fmt.Sprintf(entry, "[path]"): "from must be",
		"domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: [x]}]}}]\n":               "name must be",
		"domain: d\nlimits: {l: {algorithm: token_bucket, rate: 5, period: 1s, guaranteed: {period: 1s}}}\n":                         "guaranteed needs rate and period",
		"domain: d\nlimits: {l: {algorithm: token_bucket, rate: 5, period: 1s, guaranteed: {rate: 1}}}\n":                            "guaranteed needs rate and period",
		"domain: d\nlimits: {l: {algorithm: token_bucket, rate: 5, period: 1s, guaranteed: {rate: x, period: 1s}}}\n":                "rate must be a whole number",
		"domain: d\nlimits: {l: {algorithm: fixed_window, rate: 5, period: 1h, time_zone: UTC}}\n":                                   "time_zone needs period day",
		"domain: d\nlimits: {l: {algorithm: fixed_window, rate: [5], period: 1h}}\n":                                                 "rate must be a whole number, is a list",
		"domain: d\nlimits: {l: {algorithm: fixed_window, rate: 5, period: [1h]}}\n":                                                 "period must be a duration",
		"domain: d\nlimits: {l: {algorithm: fixed_window, rate: 5, period: 1h, then: m}, m: {algorithm: no, rate: 5, period: 1h}}\n": "algorithm must be one of",
	} {
		if got := bad(t, Options{}, text); strings.Contains(got, "\n") || !strings.Contains(got, want) {
			t.Errorf("%s:\n%s\nwant one problem with %q", text, got, want)
		}
	}
}

func TestMessagesAboutNumbersSuggestANumber(t *testing.T) {
	for value, want := range map[string]string{
		"10/m": "; write rate: 10, period: 1m", "10 per hours": "; write rate: 10, period: 1h", "5rps": "; write rate: 5, period: 1s",
		"2k": "; write 2000", "3M": "; write 3000000", "5.0": "; write 5", "1e3": "; write 1000",
		".inf": "", ".nan": "", "1.5": "", "many": "", "'7'": "; remove the quotes",
	} {
		text := bad(t, Options{}, "domain: d\nlimits: {l: {algorithm: fixed_window, rate: "+value+", period: 1h}}\n")
		if !strings.HasSuffix(text, want) || want == "" && strings.Contains(text, "; ") {
			t.Errorf("%s: got %s; want the suggestion %q", value, text, want)
		}
	}
}

func TestWarningsAboutTrustedProxies(t *testing.T) {
	const domain = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
	for network, want := range map[string]string{
		"::ffff:0.0.0.0/96": "0.0.0.0/0", "0.0.0.0/0": "0.0.0.0/0", "::/0": "::/0",
		"::ffff:10.0.0.0/104": "10.0.0.0/8", "::ffff:192.0.2.1": "192.0.2.1/32",
	} {
		s, problems := Compile(numbered([]string{domain + "auth: {trusted_proxies: ['" + network + "'], routes: [{descriptors: [[{key: k, from: client_ip}]]}]}\n"}), Options{})
		all := strings.HasSuffix(want, "/0")
		if s == nil || len(s.Auth.Trusted) != 1 || s.Auth.Trusted[0].String() != want || strings.Contains(problems.Error(), "trusts every client") != all {
			t.Errorf("%s: got %+v, %v; want %s, and a warning: %t", network, s, problems, want, all)
		}
	}
	for source, want := range map[string]bool{"client_ip": true, "client_network": true, "path": false} {
		_, problems := Compile(numbered([]string{domain + "auth: {routes: [{descriptors: [[{key: k, from: " + source + "}]]}]}\n"}), Options{})
		if got := strings.Contains(problems.Error(), "because no proxy is trusted"); got != want || problems.Bad() {
			t.Errorf("%s: warned: %t, want %t; the problems are %v", source, got, want, problems)
		}
	}
}

// A value with a blank at its end matches nothing, unless blanks are kept.
func TestWarningsAboutBlanks(t *testing.T) {
	const domain = "domain: d\ndescriptors: [{key: k, value: 'a ', rate_limit: {unit: day, requests_per_unit: 1}}]\n"
	for _, kept := range []bool{false, true} {
		_, problems := Compile(numbered([]string{domain}), Options{KeepBlanks: kept})
		if got := strings.Contains(problems.Error(), "never matches"); got == kept {
			t.Errorf("--keep-blanks %t: got %v; want a warning: %t", kept, problems, !kept)
		}
	}
}

func TestALimitWithSettleSettles(t *testing.T) {
	const file = "domain: d\nlimits:\n  l: {algorithm: token_bucket, rate: 100, period: 1h, settle: {estimate: 5%s}}\n"
	for more, want := range map[string]int64{", max_debt: 0": 0, ", max_debt: 7": 7} {
		l := good(t, Options{}, fmt.Sprintf(file, more)).Domains["d"].Named["l"].Limit
		if !l.Settles || l.MaxDebt != want {
			t.Errorf("%s: settles: %t, up to a debt of %d; want true, %d", more, l.Settles, l.MaxDebt, want)
		}
	}
	if l := good(t, Options{}, fmt.Sprintf(file, "")).Domains["d"].Named["l"].Limit; !l.Settles {
		t.Errorf("without max_debt: got %+v; want a limit that settles", l)
	}
}

func TestADocumentWithoutADomainAddsNone(t *testing.T) {
	k := newKeeper(t)
	k.load("a.yaml=" + of("a", 1))
	domains, stale, problems := k.load("a.yaml="+of("a", 2), "x.yaml=descriptors: [{key: k, limit: missing}]\n")
	if domains != "a 2" || stale != "" || !problems.Bad() {
		t.Errorf("got %q, stale %q, %v; want domain a alone, none stale, and a mistake", domains, stale, problems)
	}
}

// If a message cannot be decoded, and neither its domain nor its name is known, it may concern any domain. So there is
// no configuration before the first valid one.
func TestAnUnreadableFirstMessageGivesNoConfiguration(t *testing.T) {
	k := NewKeeper(Options{})
	reported := Problems{{File: "xds", Message: "cannot be decoded"}}
	valid := Message{Name: "b", Domain: "b", Descriptors: []MessageDescriptor{{Key: "k", Limit: &MessageLimit{Unit: "day", RequestsPerUnit: 1}}}}
	if s, problems, stale := k.CompileMessages([]Message{{Unreadable: true}, valid}, reported); s != nil || len(stale) > 0 || !problems.Bad() {
		t.Errorf("got %q, stale %v, %v; want no configuration", shown(s), stale, problems)
	}
	if s, _, stale := k.CompileMessages([]Message{valid}, nil); shown(s) != "b 1" || len(stale) > 0 {
		t.Errorf("got %q, stale %v; want domain b", shown(s), stale)
	}
}

// The key domain of a document is at the start of a line. That of a route is indented.
func TestLikelyDomains(t *testing.T) {
	for text, want := range map[string]string{
		"domain: a\n": "a", "# x\ndomain: \"a b\" # c\n---\ndomain: 'c'": "a b,c", "auth:\n  domain: a\nsubdomain: b\n": "", "domain:": "", "": "",
	} {
		if got := strings.Join(likelyDomains([]byte(text)), ","); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// If the limit that pays for another one has a mistake, only that mistake is reported, and the domain keeps its last
// valid version.
func TestAPayerWithAMistake(t *testing.T) {
	const file = "domain: d\nhash_tag: domain\nlimits:\n  plan: {algorithm: fixed_window, rate: %d, period: 1h, then: credits}\n" +
		"  credits: {algorithm: %s, rate: 5, period: 1h}\ndescriptors: [{key: k, limit: plan}]\n"
	k := newKeeper(t)
	domains, stale, problems := k.load("d.yaml=" + fmt.Sprintf(file, 1, "fixed_window"))
	if domains == "" || stale != "" || problems.Bad() {
		t.Fatalf("got %q, stale %q, %v; want a valid configuration", domains, stale, problems)
	}
	if again, stale, problems := k.load("d.yaml=" + fmt.Sprintf(file, 2, "no")); again != domains || stale != "d" || len(problems) != 1 || !strings.Contains(problems.Error(), "algorithm must be one of") {
		t.Errorf("got %q, stale %q, %v; want %q, stale, and one mistake of the algorithm", again, stale, problems, domains)
	}
}
