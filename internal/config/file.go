package config

import (
	"reflect"
	"slices"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/weights"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/calendar"
)

// This file defines the structure of a configuration file: a struct for each level, with a field for each
// key. The type of a field determines how its value is read (values.go). The parser, the advice on misplaced
// keys and the test of schema.json use these structs, so they know a new key as soon as it has a field.

// document is a YAML document. It contains a domain, or a part of one.
type document struct {
	at          place
	incomplete  bool                 // a key could not be read, so no key counts as missing
	again       func() []*descriptor // parses the descriptors again, if they were dropped to save memory
	Domain      text                 `key:"domain"`
	Consume     consume              `key:"consume"`
	OnFailure   failure              `key:"on_backend_failure"`
	LocalShare  share                `key:"local_share"`
	HashTag     text                 `key:"hash_tag"`
	MaxOverride oneLimit             `key:"max_override"`
	Require     requirements         `key:"require"`
	DenyBody    denyBody             `key:"deny_body"`
	Headers     headerSets           `key:"http_headers"`
	Settle      settleDomain         `key:"settle"`
	Limits      namedLimits          `key:"limits"`
	Descriptors descriptorList       `key:"descriptors"`
	Auth        authSection          `key:"auth"`
}

type auth struct {
	at         place
	Trusted    textList    `key:"trusted_proxies"`
	IPv6Prefix whole       `key:"ipv6_prefix"`
	Default    authDefault `key:"default"`
	Routes     routeList   `key:"routes"`
}

type route struct {
	at          place
	incomplete  bool
	Match       matchMap     `key:"match"`
	PathIgnores textList     `key:"path_ignores"`
	Domain      text         `key:"domain"`
	Hits        whole        `key:"hits"`
	Check       boolean      `key:"check"`
	Descriptors authDescList `key:"descriptors"`
}

type authEntry struct {
	at         place
	incomplete bool
	Key        text `key:"key"`
	From       text `key:"from"`
	Value      text `key:"value"`
}

type descriptor struct {
	at             place
	incomplete     bool
	Key            text           `key:"key"`
	Value          text           `key:"value"`
	ValuePrefix    text           `key:"value_prefix"`
	ValueSuffix    text           `key:"value_suffix"`
	ValueRegex     text           `key:"value_regex"`
	Limit          names          `key:"limit"`
	RateLimit      limitList      `key:"rate_limit"`
	MaxOverride    oneLimit       `key:"max_override"`
	Descriptors    descriptorList `key:"descriptors"`
	Shadow         boolean        `key:"shadow_mode"`
	Quota          boolean        `key:"quota_mode"`
	Detailed       boolean        `key:"detailed_metric"`
	ValueToMetric  boolean        `key:"value_to_metric"`
	ShareThreshold boolean        `key:"share_threshold"`
	Metadata       metadata       `key:"metadata"`
}

// limit is a rate_limit or a named limit. It has the reference server's form (clock-aligned fixed windows),
// or the form with an algorithm. A key without a form tag belongs to both forms.
type limit struct {
	at         place
	incomplete bool
	broken     bool // a mistake in the limit has been reported, so its numbers are not compiled
	spec       algorithms.Spec

	Unit            text    `key:"unit" form:"reference"`
	UnitMultiplier  whole   `key:"unit_multiplier" form:"reference"`
	RequestsPerUnit whole   `key:"requests_per_unit" form:"reference"`
	Unlimited       boolean `key:"unlimited" form:"reference"`

	Algorithm   algorithm  `key:"algorithm" form:"algorithm"`
	Rate        whole      `key:"rate" form:"algorithm"`
	Period      period     `key:"period" form:"algorithm"`
	Capacity    whole      `key:"capacity" form:"algorithm"`
	TTL         span       `key:"ttl" form:"algorithm"`
	Initial     whole      `key:"initial" form:"algorithm"`
	MaxReserved whole      `key:"max_reserved" form:"algorithm"`
	Start       moment     `key:"start" form:"algorithm"`
	Overdraw    boolean    `key:"overdraw" form:"algorithm"`
	Guaranteed  minimum    `key:"guaranteed" form:"algorithm"`
	Shards      whole      `key:"shards" form:"algorithm"`
	Lease       leaseTerms `key:"lease" form:"algorithm"`
	MaxDelay    span       `key:"max_delay" form:"algorithm"`
	Settle      settling   `key:"settle" form:"algorithm"`
	Weights     weightMap  `key:"weights" form:"algorithm"`
	Then        text       `key:"then" form:"algorithm"`

	TimeZone   zone         `key:"time_zone"`
	Penalty    blocking     `key:"penalty"`
	Name       text         `key:"name"`
	Replaces   replacements `key:"replaces"`
	Shadow     boolean      `key:"shadow_mode"`
	Quota      boolean      `key:"quota_mode"`
	OnFailure  failure      `key:"on_backend_failure"`
	LocalShare share        `key:"local_share"`
	UnitName   unitName     `key:"unit_name"`
	DenyBody   denyBody     `key:"deny_body"`
}

// guaranteed is the rate that a token bucket provides even when the units for bursts are used up.
type guaranteed struct {
	Rate   whole `key:"rate"`
	Period span  `key:"period"`
}

// lease bounds what a process may borrow from a bucket.
type lease struct {
	Max share `key:"max"`
	For span  `key:"for"`
}

// penalty describes how a bucket that is denied repeatedly is blocked.
type penalty struct {
	After whole `key:"after"`
	For   span  `key:"for"`
	Max   span  `key:"max"`
}

type replacement struct {
	at         place
	incomplete bool
	Name       text `key:"name"`
}

// given is a value that a file may state.
type given[T any] struct {
	at    place // the place of the value; zero if the file does not state the value
	value T
	ok    bool // the file states the value, and the value is valid
}

// stated reports whether the file has the key, even if its value is not valid.
func (g *given[T]) stated() bool { return g.at.line > 0 }

// where returns g.at, for code that does not know the type T.
func (g *given[T]) where() place { return g.at }

func (g *given[T]) or(otherwise T) T {
	if g.ok {
		return g.value
	}
	return otherwise
}

func (g *given[T]) pointer() *T {
	if !g.ok {
		return nil
	}
	return &g.value
}

type (
	text      struct{ given[string] }            // any scalar except a float, as written
	boolean   struct{ given[bool] }              // true, false, or another boolean of YAML 1.1
	whole     struct{ given[int64] }             // an integer
	span      struct{ given[algorithms.Micros] } // a duration such as "1h30m", longer than 0
	period    struct{ given[cycle] }             // a duration, or one of day, week, month, year
	zone      struct{ given[*time.Location] }    // a name of the IANA time zone database
	moment    struct{ given[algorithms.Micros] } // a time in the format of RFC 3339
	share     struct{ given[float64] }           // "20%" or 0.2; more than 0, at most 1
	algorithm struct{ given[algorithms.Kind] }
	consume   struct{ given[bool] }              // each (stored as true) or together
	failure   struct{ given[limiter.OnFailure] } // the name of an on_backend_failure mode
	names     struct{ given[[]text] }            // a name or a list of names

	requirements struct{ given[[][]text] } // a list of keys, and of lists of alternative keys

	denyBody   struct{ given[limiter.Body] }
	unitName   struct{ given[limiter.Unit] }
	headerSets struct{ given[limiter.HeaderSets] } // a word or a list of words

	weightMap      struct{ given[*weights.Weights] } // a mapping of names to weights such as 4, 0.1 or 1/10
	minimum        struct{ given[*guaranteed] }
	leaseTerms     struct{ given[*lease] }
	blocking       struct{ given[*penalty] }
	metadata       struct{ given[map[string]any] }
	oneLimit       struct{ given[*limit] }
	limitList      struct{ given[[]*limit] } // a mapping or a list of mappings
	descriptorList struct{ given[[]*descriptor] }
	replacements   struct{ given[[]*replacement] }
	namedLimits    struct{ given[[]namedLimit] } // in the order of the file

	authSection  struct{ given[*auth] }
	authDefault  struct{ given[bool] } // allow (stored as true) or deny
	textList     struct{ given[[]text] }
	routeList    struct{ given[[]*route] } // a list of mappings
	matchMap     struct{ given[[]matchItem] }
	authDescList struct{ given[[][]*authEntry] } // a list of lists of mappings
)

// cycle is a period: a duration or a unit of the calendar.
type cycle struct {
	span algorithms.Micros // 0 means that unit is the period
	unit calendar.Unit
}

type namedLimit struct {
	name  string
	limit *limit
}

var consumeNames = map[string]bool{"together": false, "each": true}

// level describes the keys of a mapping.
type level struct {
	subject string // the level's name in messages, such as "a descriptor"
	where   string // where the level's keys belong, such as "in an item of descriptors"
	typ     reflect.Type
	keys    []string            // in the order of the struct
	field   map[string]int      // maps a key to the index of its field
	forms   map[string]string   // maps a key to the form of limit that it belongs to; "" means both forms
	ofForm  map[string][]string // maps a form to its keys, in the order of the struct
}

// levels lists the levels of a file. Advice on a misplaced key names the first level that has the key and for
// which adviseAt returns true.
var levels = []*level{
	newLevel[descriptor]("a descriptor", "in an item of descriptors"),
	newLevel[limit]("a limit", "inside rate_limit or a named limit"),
	newLevel[document]("the top level", "at the top level of the file"),
	newLevel[guaranteed]("guaranteed", "inside guaranteed"),
	newLevel[lease]("lease", "inside lease"),
	newLevel[penalty]("penalty", "inside penalty"),
	newLevel[settleNames]("settle of a domain", "inside settle of a domain"),
	newLevel[estimateTerms]("estimate", "inside estimate"),
	newLevel[settleTerms]("settle", "inside settle of a limit"),
	newLevel[replacement]("replaces", "in an item of replaces"),
	newLevel[auth]("auth", "inside auth"),
	newLevel[route]("a route", "in an item of routes"),
	newLevel[authEntry]("an entry", "in an entry of a route's descriptor"),
}

func newLevel[T any](subject, where string) *level {
	l := &level{subject: subject, where: where, typ: reflect.TypeFor[T](), field: map[string]int{}, forms: map[string]string{}, ofForm: map[string][]string{}}
	for i := range l.typ.NumField() {
		if key := l.typ.Field(i).Tag.Get("key"); key != "" {
			l.field[key] = i
			l.keys = append(l.keys, key)
			form := l.typ.Field(i).Tag.Get("form")
			l.forms[key], l.ofForm[form] = form, append(l.ofForm[form], key)
		}
	}
	return l
}

func levelOf(typ reflect.Type) *level {
	return levels[slices.IndexFunc(levels, func(l *level) bool { return l.typ == typ })]
}

// stated returns the keys of a form ("reference" or "algorithm") that l states, with their places.
func (l *limit) stated(form string) (keys []string, at []place) {
	v, level := reflect.ValueOf(l).Elem(), levelOf(reflect.TypeFor[limit]())
	for _, key := range level.ofForm[form] {
		// This reads given.at.line, like given.stated. Calling a method through reflection would allocate
		// memory for each key of each limit, which took a tenth of the time of compiling.
		if i := level.field[key]; v.Field(i).Field(0).FieldByIndex(lineOfGiven).Int() > 0 {
			keys, at = append(keys, key), append(at, l.place(key))
		}
	}
	return keys, at
}

// lineOfGiven is the index path of the field given.at.line.
var lineOfGiven = func() []int {
	at, _ := reflect.TypeFor[given[bool]]().FieldByName("at")
	line, _ := at.Type.FieldByName("line")
	return append(at.Index, line.Index...)
}()

func (l *level) form(key string) string { return l.forms[key] }

// place returns the place of key in l, or the place of l if the file does not state key.
func (l *limit) place(key string) place {
	level := levelOf(reflect.TypeFor[limit]())
	if i, known := level.field[key]; known {
		where := reflect.ValueOf(l).Elem().Field(i).Addr().Interface().(interface{ where() place }).where()
		if where.line > 0 {
			return where
		}
	}
	return l.at
}

// place is a position in a file or a Message.
type place struct {
	src          *origin
	line, column int32 // counted from 1; a line of 0 means the whole file
}

// origin is a file, or a part of a Message. Every value has a place, so all places in a file share one origin
// to save memory.
type origin struct {
	file string
	path string // the path inside a Message; "" for a file
}

func inFile(name string) place { return place{src: &origin{file: name}} }

func (p place) file() string {
	if p.src == nil {
		return ""
	}
	return p.src.file
}

// shown returns p as a limiter.Place: the file and line, or the path inside a Message.
func (p place) shown() limiter.Place {
	switch {
	case p.src == nil:
		return limiter.Place{}
	case p.src.path != "":
		return limiter.Place{File: p.src.file + ": " + p.src.path}
	default:
		return limiter.Place{File: p.src.file, Line: int(p.line)}
	}
}

func (p place) String() string { return p.shown().String() }
