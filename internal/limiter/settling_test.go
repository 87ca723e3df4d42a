package limiter_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const tokens = `
domain: d
require: [user]
limits:
  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: 100, least: 10, most: 500, ttl: 1m}}
  team: {algorithm: fixed_window, rate: 150, period: 1d, settle: {estimate: 50, ttl: 1m}}
  calls: {algorithm: fixed_window, rate: 5, period: 1d}
  trusting: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: 100, trust_declared: true}}
  careful: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: 100, most: 300, unknown_cost: most}}
  free: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: 100, unknown_cost: 7}}
descriptors:
  - {key: user, limit: tokens}
  - {key: team, limit: [team, calls]}
  - {key: trusting, limit: trusting}
  - {key: careful, limit: careful}
  - {key: free, limit: free}
  - {key: shadow, shadow_mode: true, rate_limit: {algorithm: fixed_window, rate: 150, period: 1d, settle: {estimate: 100}}}
---
domain: other
limits:
  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: 100}}
descriptors:
  - {key: user, limit: tokens}
`

type proxy struct {
	*bench
	t      *testing.T
	header string // Request.ID
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	return &proxy{newBench(t, tokens), t, ""}
}

func newProxyOf(t *testing.T, ids limiter.IDs) *proxy {
	t.Helper()
	p := newProxy(t)
	p.restart(t, tokens, func(c *limiter.Config) { c.IDs = ids })
	return p
}

// absent stands for a cost that a descriptor does not state.
const absent = -1 << 40

// send sends descriptors ("user=bob") that state these costs.
func (p *proxy) send(domain string, costs []int64, texts ...string) *limiter.Call {
	p.t.Helper()
	c := &limiter.Call{}
	c.Request.Domain, c.Request.ID, c.Returns = domain, p.header, true
	for i, text := range texts {
		key, value, _ := strings.Cut(text, "=")
		d := c.AddDescriptor()
		d.Entries, d.Cost = []descriptors.Entry{{Key: key, Value: value}}, 1
		if costs[i] != absent {
			d.Cost, d.Explicit, d.Declared = costs[i], costs[i] >= 0, true
		}
	}
	if err := p.Check(p.t.Context(), c); err != nil {
		p.t.Fatal(err)
	}
	return c
}

func (p *proxy) start(cost int64, texts ...string) (id string) {
	p.t.Helper()
	c := p.send("d", slices.Repeat([]int64{cost}, len(texts)), texts...)
	if c.Denied {
		p.t.Fatalf("start of %v: denied", texts)
	}
	return string(c.AppendID(nil))
}

// done sends the two descriptors that Envoy sends at the end of a stream. One has the id and the real cost. The
// other has only the id; Envoy sends it even if the cost is unknown.
func (p *proxy) done(id string, cost int64) *limiter.Call {
	p.t.Helper()
	return p.send("d", []int64{cost, 0}, "settle="+id, "settle_end="+id)
}

func (p *proxy) left(limit, key string) int64 {
	p.t.Helper()
	c := p.check(p.t, limiter.Request{Domain: "d", DryRun: true, Limits: []limiter.NamedCharge{{Name: limit, Key: []string{key}}}})
	return c.Results[0].Decision.Remaining
}

func (p *proxy) want(limit, key string, want int64) {
	p.t.Helper()
	if left := p.left(limit, key); left != want {
		p.t.Errorf("%s of %s has %d left, want %d", limit, key, left, want)
	}
}

func TestASettleStartReservesTheLargerOfEstimateAndDeclaration(t *testing.T) {
	for _, c := range []struct {
		descriptor, limit string
		declared, want    int64
	}{
		{"user=bob", "tokens", absent, 100},
		{"user=bob", "tokens", 1, 100},
		{"user=bob", "tokens", 0, 100},
		{"user=bob", "tokens", -5, 100},
		{"user=bob", "tokens", 250, 250},
		{"user=bob", "tokens", 1 << 62, 500}, // the reserved units are at most the configured "most"
		{"trusting=bob", "trusting", 3, 3},
		{"trusting=bob", "trusting", 0, 100},
		{"trusting=bob", "trusting", absent, 100},
	} {
		p := newProxy(t)
		p.start(c.declared, c.descriptor, "user=require")
		if got := 1000 - p.left(c.limit, "bob"); got != c.want {
			t.Errorf("%s declares %d: %d reserved, want %d", c.descriptor, c.declared, got, c.want)
		}
	}
}

func TestARepeatedSettleDoneCountsOnce(t *testing.T) {
	p := newProxy(t)
	id := p.start(absent, "user=bob")
	p.done(id, 37)
	for _, again := range []int64{37, 900, 0, absent} {
		if c := p.done(id, again); !c.Settlements[0].Repeated || c.Denied {
			t.Errorf("again with %d: %+v; want repeated and allowed", again, c.Settlements)
		}
	}
	p.now += 61 * sec // the settlement is late
	p.done(id, 900)
	p.want("tokens", "bob", 963)
	if c := p.send("d", []int64{5, 900, 0}, "settle="+id, "settle="+id, "settle_end="+id); len(c.Settlements) != 1 {
		t.Errorf("one id twice in a request: %+v; want 1", c.Settlements)
	}
}

func TestACostThatIsNotReportedIsTheUnknownCost(t *testing.T) {
	for _, c := range []struct {
		descriptor, limit string
		want              int64
	}{{"user=bob", "tokens", 100}, {"careful=bob", "careful", 300}, {"free=bob", "free", 7}} {
		for name, done := range map[string]func(p *proxy, id string) *limiter.Call{
			"without hits":  func(p *proxy, id string) *limiter.Call { return p.done(id, absent) },
			"negative hits": func(p *proxy, id string) *limiter.Call { return p.done(id, -5) },
			"the end alone": func(p *proxy, id string) *limiter.Call { return p.send("d", []int64{0}, "settle_end="+id) },
		} {
			p := newProxy(t)
			if call := done(p, p.start(absent, c.descriptor, "user=require")); !call.Settlements[0].Unknown {
				t.Errorf("%s, %s: got %+v; want unknown", c.limit, name, call.Settlements)
			}
			if got := 1000 - p.left(c.limit, "bob"); got != c.want {
				t.Errorf("%s, %s: charged %d, want %d", c.limit, name, got, c.want)
			}
		}
	}
}

func TestIDsThatChargeNothing(t *testing.T) {
	p := newProxy(t)
	theirs := newProxyOf(t, keysOf("another secret"))
	id, foreign := p.start(absent, "user=bob"), theirs.start(absent, "user=bob")
	elsewhere := string(p.send("other", []int64{absent}, "user=bob").AppendID(nil))
	gone := p.start(absent, "shadow=bob", "user=bob")
	p.swap(t, strings.Replace(tokens, "rate: 150, period: 1d, settle: {estimate: 100}", "rate: 150, period: 1d", 1))
	for _, c := range []struct {
		name, id string
		reason   limiter.Unsettled
	}{
		{"none", limiter.None, limiter.NoneReserved},
		{"empty", "", limiter.NoneReserved},
		{"of the client's making", "forged", limiter.Forged},
		{"signed with another secret", foreign, limiter.Forged},
		{"changed", id[:40] + map[bool]string{true: "B", false: "A"}[id[40] == 'A'] + id[41:], limiter.Forged},
		{"cut", id[:len(id)-1], limiter.Forged},
		{"with more behind", id + "AAAA", limiter.Forged},
		{"long", strings.Repeat("A", 1<<20), limiter.Forged},
		{"of another domain", elsewhere, limiter.Foreign},
	} {
		call := p.done(c.id, 500)
		if s := call.Settlements; len(s) != 1 || s[0].Reason != c.reason || call.Denied {
			t.Errorf("%s: %+v, want %s", c.name, s, c.reason)
		}
	}
	p.want("tokens", "bob", 800)
	call := p.done(gone, 500) // one of its limits no longer has settle
	if s := call.Settlements; len(s) != 2 || s[0].Policy == nil || s[1].Reason != limiter.Changed {
		t.Errorf("got %+v; want 2 elements, policy not nil and reason %v", s, limiter.Changed)
	}
}

func TestALateSettleDoneChargesTheExcess(t *testing.T) {
	for _, c := range []struct{ cost, want int64 }{{20, 900}, {absent, 900}, {130, 870}} {
		p := newProxy(t)
		id := p.start(absent, "user=bob")
		p.now += 60*sec + 1
		if call := p.done(id, c.cost); !call.Settlements[0].Late {
			t.Errorf("got %+v; want late", call.Settlements)
		}
		p.want("tokens", "bob", c.want)
		p.now += 90 * sec
		p.done(id, 500)
		p.want("tokens", "bob", c.want)
	}
}

func TestThePreviousSigningKeyIsAccepted(t *testing.T) {
	secrets := []string{"first"}
	p := newProxyOf(t, reservation.NewKeys(func() []string { return secrets }))
	old := p.start(absent, "user=bob")
	older := p.start(absent, "user=bob")
	secrets = []string{"second", "first"}
	p.done(old, 0)
	p.done(p.start(absent, "user=bob"), 0)
	p.want("tokens", "bob", 900)
	secrets = []string{"third", "second"}
	if s := p.done(older, 0).Settlements; s[0].Reason != limiter.Forged {
		t.Errorf("got %+v; want reason %v", s, limiter.Forged)
	}
	secrets = nil
	if id := p.start(absent, "user=bob"); id != limiter.None {
		t.Errorf("without a key: id %s; want %v", id, limiter.None)
	}
}

func TestAFailedSettlementIsDeniedAtItsDescriptor(t *testing.T) {
	p := newProxy(t)
	id := p.start(absent, "user=bob")
	p.store.err = backend.ErrUnavailable
	c := p.send("d", []int64{1, 30}, "settle="+limiter.None, "settle="+id)
	if s := c.Statuses; !c.Denied || s[0].Denied || !s[1].Denied {
		t.Errorf("got %+v, want the second status denied", c.Verdict)
	}
}

// Ids cannot be verified without keys, so all of them count as forged.
func TestWithoutKeysAllIDsAreForged(t *testing.T) {
	p := newProxy(t)
	id, r := p.start(absent, "user=bob"), &limiter.Reserved{}
	if !p.Open(id, r) || len(r.Parts) != 1 || p.Open(id[1:], r) || p.Open("", r) {
		t.Errorf("id %s: got %+v; want that it has one part, and that no other text can be opened", id, r)
	}
	p.restart(t, tokens, func(c *limiter.Config) { c.IDs = nil })
	if c := p.done(id, 5); c.Denied || len(c.Settlements) != 1 || c.Settlements[0].Reason != limiter.Forged || p.Open(id, r) || p.ID(r) != "" {
		t.Errorf("got %+v; want an allowed request with one forged id", c.Verdict)
	}
}

func TestTooManyReservationsChargeNothing(t *testing.T) {
	p := newProxy(t)
	texts := []string{"team=red"}
	for i := range limiter.MaxReserved {
		texts = append(texts, fmt.Sprint("user=", i))
	}
	c := p.send("d", slices.Repeat([]int64{absent}, len(texts)), texts...)
	if !c.Denied || !c.Never {
		t.Errorf("got %+v; want denied for good", c.Verdict)
	}
	for i := range c.Results {
		want := limiter.Denied
		if c.Results[i].Policy.Name == "calls" {
			want = limiter.Replaced
		}
		if got := c.Results[i].Outcome; got != want {
			t.Errorf("limit %s: outcome %d, want %d", c.Results[i].Policy.Name, got, want)
		}
	}
	p.want("calls", "red", 5)
	p.want("team", "red", 150)
}

// Clients choose descriptors. A descriptor without entries matches nothing. An id as the value of an entry with
// another key than settle settles nothing.
func TestDescriptorsBesideASettleDone(t *testing.T) {
	p := newProxy(t)
	id := p.start(absent, "user=bob")
	c := &limiter.Call{}
	c.Request.Domain = "d"
	for i, entries := range [][]descriptors.Entry{nil, {{Key: "user", Value: id}}, {{Key: "settle_end", Value: id}}, {{Key: "settle", Value: id}}} {
		d := c.AddDescriptor()
		d.Entries, d.Cost, d.Explicit, d.Declared = entries, int64(2+i), true, true
	}
	if err := p.Check(t.Context(), c); err != nil || c.Denied || len(c.Settlements) != 1 || c.Settlements[0].Descriptor != 3 || c.Settlements[0].Real != 5 {
		t.Errorf("error %v, %+v; want one settlement", err, c.Verdict)
	}
	p.want("tokens", "bob", 995)
}

// An id has parts of limits with settle only. If there are too many, those in shadow mode are left out. A request that
// consumes nothing gets no id.
func TestWhatAnIDContains(t *testing.T) {
	p := newProxy(t)
	if s := p.done(p.start(absent, "user=bob", "team=red"), 10).Settlements; len(s) != 2 {
		t.Errorf("got %+v; want the settlements of tokens and team", s)
	}
	if s := p.done(p.start(absent, "user=bob", "user=bob"), 10).Settlements; len(s) != 1 {
		t.Errorf("one bucket twice: got %+v; want one settlement", s)
	}
	texts := []string{"shadow=1"}
	for i := range limiter.MaxReserved {
		texts = append(texts, fmt.Sprint("user=", i))
	}
	if s := p.done(p.start(absent, texts...), 10).Settlements; len(s) != limiter.MaxReserved {
		t.Errorf("%d limits and a shadow limit: %d settlements, want %d", limiter.MaxReserved, len(s), limiter.MaxReserved)
	}
	r := &limiter.Reserved{}
	if !p.Open(p.start(absent, "user=bob"), r) || len(r.Parts) != 1 || r.Parts[0].Times != 1 {
		t.Errorf("got %+v, want one part", r)
	}
	dryRun := request(t, 1, "user=bob")
	dryRun.DryRun = true
	if c := p.check(t, dryRun); string(c.AppendID(nil)) != limiter.None {
		t.Errorf("a dry run: %+v; want no reservation", c.Verdict)
	}
}

func TestWhileTheStoreFailsNothingIsReserved(t *testing.T) {
	p := newProxy(t)
	id := p.start(absent, "user=bob")
	p.store.err = errors.New("away")
	if c := p.send("d", []int64{absent}, "user=bob"); !c.Denied || string(c.AppendID(nil)) != limiter.None {
		t.Errorf("start: %+v; want denied and c.AppendID(nil) %v", c.Verdict, limiter.None)
	}
	if c := p.done(id, 5); !c.Denied || !c.Failed || !c.Settlements[0].Failed() {
		t.Errorf("done: %+v, want a denial, so that it is repeated", c.Verdict)
	}
	p.store.err = nil
	p.done(id, 5)
	p.want("tokens", "bob", 995)

	// What the store has not charged must not be settled there.
	for _, policy := range []string{"allow", "local\nlocal_share: 20%"} {
		p.swap(t, strings.Replace(tokens, "domain: d\n", "domain: d\non_backend_failure: "+policy+"\n", 1))
		p.store.err = errors.New("away")
		if id := p.start(absent, "user=bob"); id != limiter.None {
			t.Errorf("%s: id %s of an answer by policy; want %v", policy, id, limiter.None)
		}
	}
}
