// Package diff describes in words the effects of a change of the configuration: on each limit, on the descriptors that
// now match other limits, and on the buckets in use.
package diff

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type Kind string

const (
	Added   Kind = "added"
	Removed Kind = "removed"
	Changed Kind = "changed"
)

type Change struct {
	Kind Kind `json:"change"`
	// What is the kind of item: "domain", "limit", "descriptor", "section" (auth) or "configuration".
	What string `json:"what"`
	// Name identifies the item. A limit and a descriptor have their domain before their name.
	Name string `json:"name"`
	// Place is file:line, in the new configuration if it is there.
	Place string `json:"place,omitempty"`
	// Details describe the change, such as "shards: 2 -> 1".
	Details []string `json:"details,omitempty"`
	// Fresh means that the change gives requests new buckets. A client can then consume up to one capacity
	// more, once.
	Fresh bool `json:"buckets_start_anew"`
}

const (
	fresh = "The buckets start anew: each client gets up to one capacity more, once."
	kept  = "Consumption is kept: what was used stays used."
	less  = "A client that has used more than the new limit holds is denied until the excess has refilled."
)

// Compare lists the changes from one configuration to another, in this order: RLSIDECAR_KEEP_BLANKS, domains, limits,
// descriptors, and the section auth.
func Compare(was, is *limiter.Snapshot) []Change {
	all := []Change{}
	if was.KeepBlanks != is.KeepBlanks {
		all = append(all, Change{Kind: Changed, What: "configuration", Name: "keep_blanks", Fresh: true, Details: []string{
			fmt.Sprintf("spaces at the ends of values are kept: %t -> %t", was.KeepBlanks, is.KeepBlanks), fresh,
		}})
	}
	for _, name := range names(was.Domains, is.Domains) {
		all = append(all, domain(name, was.Domains[name], is.Domains[name])...)
	}
	all = append(all, Limits(was, is)...)
	for _, name := range names(was.Domains, is.Domains) {
		if old, new := was.Domains[name], is.Domains[name]; old != nil && new != nil {
			all = append(all, moved(name, old.Tree, new.Tree)...)
		}
	}
	return append(all, auth(was.Auth, is.Auth)...)
}

func names[V any](a, b map[string]V) []string {
	both := maps.Clone(a)
	if both == nil {
		both = map[string]V{}
	}
	maps.Copy(both, b)
	return slices.Sorted(maps.Keys(both))
}

func domain(name string, was, is *limiter.Domain) []Change {
	c := Change{Kind: Changed, What: "domain", Name: descriptors.Printable(name)}
	switch {
	case was == nil:
		c.Kind = Added
		return []Change{c}
	case is == nil:
		c.Kind, c.Details = Removed, []string{"Requests of this domain are not limited any more."}
		return []Change{c}
	}
	c.Details = differences(
		part{"consume", limiter.ConsumeWord(was.Alone), limiter.ConsumeWord(is.Alone)},
		part{"require", required(was.Require), required(is.Require)},
		part{"settle", settleKeys(was), settleKeys(is)},
		part{"deny_body", was.DenyBody.String(), is.DenyBody.String()},
		part{"http_headers", headers(was.Headers), headers(is.Headers)},
		part{"max_override", boundOf(was.MaxOverride), boundOf(is.MaxOverride)},
		part{"on_backend_failure of limits that come with requests", was.OnFailure.Words(was.LocalShare), is.OnFailure.Words(is.LocalShare)},
	)
	if len(c.Details) == 0 {
		return nil
	}
	return []Change{c}
}

func required(all []limiter.Requirement) string {
	keys := make([]string, len(all))
	for i := range all {
		keys[i] = all[i].String()
	}
	return limiter.ListWords(keys)
}

func settleKeys(d *limiter.Domain) string {
	s := cmp.Or(d.FormerSettle, &limiter.DefaultSettle)
	return limiter.ListWords([]string{s.Key, s.End})
}

func headers(h *limiter.HeaderSets) string {
	if h == nil {
		return "the listener's default"
	}
	var sets []string
	for _, set := range []struct {
		has  bool
		name string
	}{{h.IETF, "ietf"}, {h.X, "x"}, {h.OpenAI, "openai"}, {!h.NoRetryAfter, "retry_after"}} {
		if set.has {
			sets = append(sets, set.name)
		}
	}
	return limiter.ListWords(sets)
}

func boundOf(p *limiter.Policy) string {
	if p == nil {
		return "none"
	}
	return p.Words()
}

type part struct{ name, was, is string }

// common returns the elements of a that b has too.
func common(a, b []string) []string {
	has := map[string]bool{} // a level may have many patterns
	for _, text := range b {
		has[text] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(text string) bool { return !has[text] })
}

// differences returns a text such as "shards: 2 -> 1" for each part that differs.
func differences(parts ...part) (details []string) {
	for _, p := range parts {
		if p.was != p.is {
			details = append(details, fmt.Sprintf("%s: %s -> %s", p.name, p.was, p.is))
		}
	}
	return details
}

// limitsOf returns the policies of each limit. They are identified without the algorithm, so that a limit whose
// algorithm changes is found in both configurations.
func limitsOf(s *limiter.Snapshot) map[string][]*limiter.Policy {
	all := map[string][]*limiter.Policy{}
	for _, p := range s.Policies {
		id := descriptors.Limit(p.Prefix)
		all[id] = append(all[id], p)
	}
	return all
}

func title(p *limiter.Policy) string {
	return descriptors.Printable(p.Domain) + "/" + descriptors.Printable(p.Name)
}

// Limits lists the changes of limits. It compares the limits with equal names, and limits without a name that have equal
// descriptors.
func Limits(was, is *limiter.Snapshot) (all []Change) {
	before, after := limitsOf(was), limitsOf(is)
	ids := names(before, after)
	policy := func(id string) *limiter.Policy {
		if new := after[id]; new != nil {
			return new[0]
		}
		return before[id][0]
	}
	slices.SortStableFunc(ids, func(a, b string) int {
		return cmp.Or(cmp.Compare(policy(a).Domain, policy(b).Domain), cmp.Compare(policy(a).StatKey, policy(b).StatKey))
	})
	for _, id := range ids {
		old, new := before[id], after[id]
		switch {
		case slices.EqualFunc(old, new, same): // most limits, and their texts would take time and memory
		case old == nil:
			c := Change{Kind: Added, What: "limit", Name: title(new[0]), Place: new[0].Place.String(), Details: []string{new[0].Words()}}
			c.Details = append(c.Details, modes(new[0])...)
			all = append(all, c)
		case new == nil:
			all = append(all, Change{Kind: Removed, What: "limit", Name: title(old[0]), Place: old[0].Place.String(), Details: []string{"was " + old[0].Words()}})
		default:
			c := Change{Kind: Changed, What: "limit", Name: title(new[0]), Place: new[0].Place.String()}
			c.numbers(old[0], new[0])
			c.places(old, new)
			if c.Fresh {
				c.Details = slices.DeleteFunc(c.Details, func(d string) bool { return d == kept || d == less })
				c.Details = append(c.Details, fresh)
			}
			if len(c.Details) > 0 {
				all = append(all, c)
			}
		}
	}
	return all
}

// same reports whether two policies are equal, except for their places in files.
func same(a, b *limiter.Policy) bool {
	was, is := *a, *b
	was.Index, was.Place, is.Index, is.Place = 0, limiter.Place{}, 0, limiter.Place{}
	return reflect.DeepEqual(&was, &is)
}

// numbers compares the settings that all places of a limit share.
func (c *Change) numbers(was, is *limiter.Policy) {
	switch {
	case was.Unlimited || is.Unlimited:
		c.Details = append(c.Details, differences(part{"numbers", was.Words(), is.Words()})...)
	case was.Limit.Kind != is.Limit.Kind:
		c.Fresh = true
		c.Details = append(c.Details, fmt.Sprintf("algorithm: %s -> %s", was.Words(), is.Words()))
	case was.Words() != is.Words():
		c.Details = append(c.Details, fmt.Sprintf("numbers: %s -> %s", was.Words(), is.Words()), kept)
		if is.Limit.CanReserve() && is.Limit.Capacity < was.Limit.Capacity {
			c.Details = append(c.Details, less)
		}
	}
	switch {
	case title(was) != title(is):
		c.Details = append(c.Details, fmt.Sprintf("name: %s -> %s", title(was), title(is)))
	case was.RateName != is.RateName:
		c.Details = append(c.Details, fmt.Sprintf("name in answers: %q -> %q", was.RateName, is.RateName))
	}
}

func (c *Change) places(was, is []*limiter.Policy) {
	old, new := byPlace(was), byPlace(is)
	at, compared := map[string][]string{}, 0
	for _, place := range names(old, new) {
		a, b := old[place], new[place]
		if a == nil || b == nil {
			continue // moved compares the descriptors that match other limits
		}
		compared++
		details, isFresh := facts(a, b)
		c.Fresh = c.Fresh || isFresh
		for _, d := range details {
			at[d] = append(at[d], place)
		}
	}
	for _, d := range slices.Sorted(maps.Keys(at)) {
		if places := at[d]; len(places) < compared {
			d += " (" + limiter.ListWords(places) + ")"
		}
		c.Details = append(c.Details, d)
	}
}

// facts returns the settings that differ between two uses of one limit, and whether the buckets differ.
func facts(a, b *limiter.Policy) (details []string, isFresh bool) {
	was, is := a.Facts(), b.Facts()
	for i := range was {
		if was[i].Text != is[i].Text {
			isFresh = isFresh || was[i].Fresh
			details = append(details, fmt.Sprintf("%s: %s -> %s", was[i].Name, was[i].Text, is[i].Text))
		}
	}
	return details, isFresh
}

// numbered matches the number of a limit that is not the first of its descriptor. It depends on the other limits.
var numbered = regexp.MustCompile(`#[0-9]+$`)

func byPlace(policies []*limiter.Policy) map[string]*limiter.Policy {
	all := map[string]*limiter.Policy{}
	for _, p := range policies {
		all[placeOf(p)] = p
	}
	return all
}

func placeOf(p *limiter.Policy) string {
	if p.Extra().Named {
		return "requested by name"
	}
	return "descriptor " + numbered.ReplaceAllString(p.StatKey, "")
}

// modes returns those facts of p which a person who adds a limit should check.
func modes(p *limiter.Policy) (details []string) {
	for _, f := range p.Facts() {
		if !f.Default && slices.Contains([]string{"shadow_mode", "quota_mode", "on_backend_failure"}, f.Name) {
			details = append(details, f.Name+": "+f.Text)
		}
	}
	return details
}
