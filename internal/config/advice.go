package config

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rlsidecar/rlsidecar/internal/spelling"
)

// A message about a mistake consists of the mistake and a suggested correction. This file makes the suggestions.

// ownWords maps words of other rate limiters to the words of rlsidecar.
var ownWords = map[string]string{
	"burst": "capacity", "burst_size": "capacity", "max_burst": "capacity", "bucket_size": "capacity", "max_tokens": "capacity",
	"interval": "period", "window": "period", "per": "period", "duration": "period", "requests": "rate", "count": "rate", "tokens": "rate",
	"fail_open": "on_backend_failure", "failure_mode": "on_backend_failure", "failure_mode_deny": "on_backend_failure",
	"gcra": "token_bucket", "bucket": "token_bucket", "fixed": "fixed_window", "sliding": "sliding_window",
	"sliding_window_counter": "sliding_window", "sliding_window_log": "sliding_log", "leaky": "leaky_bucket",
	"open": "allow", "fail-open": "allow", "pass": "allow", "closed": "deny", "close": "deny", "fail_closed": "deny", "fail-closed": "deny",
	"block": "deny", "memory": "local", "in_memory": "local",
}

// wordAdvice returns "; write …" or "; did you mean …?" with the item of known that word probably means, or "" if
// there is none.
func wordAdvice(word string, known []string) string {
	if own, found := ownWords[strings.ToLower(word)]; found && slices.Contains(known, own) {
		return "; write " + own
	}
	if word == "fail_open" && slices.Contains(known, "allow") {
		return "; write allow"
	}
	return spelling.DidYouMean(word, known)
}

// adviseAt reports whether advice on a misplaced key may name l as the level of that key. holder is the level at which
// the key was written. The keys of settle and estimate have common names, such as "most", which people also write
// elsewhere by mistake. So advice names these two levels only for a key that was written one level above them.
func (l *level) adviseAt(holder *level) bool {
	switch l {
	case levelOf(reflect.TypeFor[settleTerms]()):
		return holder == levelOf(reflect.TypeFor[limit]())
	case levelOf(reflect.TypeFor[estimateTerms]()):
		return holder == levelOf(reflect.TypeFor[settleTerms]())
	default:
		return true
	}
}

func unknownKey(key string, holder *level) string {
	message := fmt.Sprintf("config error, unknown key '%s'", short(key))
	for _, l := range levels {
		if _, known := l.field[key]; known && l.adviseAt(holder) {
			where := l.where
			if l.form(key) == "reference" {
				where = "inside rate_limit"
			}
			return fmt.Sprintf("%s; %q belongs %s", message, key, where)
		}
	}
	if own, known := ownWords[strings.ToLower(key)]; known && slices.Contains(holder.keys, own) {
		return fmt.Sprintf("%s; write %s", message, own)
	}
	if guess := spelling.DidYouMean(key, holder.keys); guess != "" {
		return message + guess
	}
	return fmt.Sprintf("%s; %s has %s", message, holder.subject, strings.Join(holder.keys, ", "))
}

// syntaxAdvice explains the most common messages of the YAML library.
func syntaxAdvice(message string) string {
	for _, a := range []struct{ message, advice string }{
		{"tab character", "indent with spaces"},
		{"cannot start any token", "quote text that starts with @, ` or %, and indent with spaces, not tabs"},
		{"mapping values are not allowed", "quote text that has \": \" in it, or correct the indentation"},
		{"expected '-' indicator", "indent it like the items above"},
		{"expected key", "indent it like the keys above"},
		{"alphabetic or numeric character", "quote text that starts with * or &"},
		{"expected ',' or", "close the bracket, or put a comma between"},
		{"unexpected end of stream", "close the quotes"},
		{"unknown anchor", "define it before, with &, or quote text that starts with *"},
	} {
		if strings.Contains(message, a.message) {
			return "; " + a.advice
		}
	}
	return ""
}

func mappingAdvice(subject string, n *yaml.Node) string {
	if subject == "rate_limit" && n.Kind == yaml.ScalarNode && n.Value != "" && n.ShortTag() == "!!str" {
		return fmt.Sprintf("; write \"limit: %s\" in place of rate_limit to use a limit of that name", short(n.Value))
	}
	if n.Kind == yaml.SequenceNode {
		return `; remove the "-"`
	}
	return `; write "key: value" lines`
}

func listAdvice(n *yaml.Node) string {
	if n.Kind == yaml.MappingNode {
		return `; put "- " before its first key`
	}
	return ""
}

func itemAdvice(key string, item *yaml.Node) string {
	if key == "replaces" && item.Kind == yaml.ScalarNode {
		return fmt.Sprintf("; write {name: %s}", short(item.Value))
	}
	return `; write "- key: value"`
}

func quoteAdvice(n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode {
		return ""
	}
	return fmt.Sprintf("; quote it: %q", short(n.Value))
}

func unquoteAdvice(n *yaml.Node, known bool) string {
	if known && n.Style&quoted != 0 {
		return "; remove the quotes"
	}
	return ""
}

var (
	// thousands matches a number with a suffix such as k or M. perTime matches a number with a unit of time:
	// 10/m, 10 per minute, 10rps.
	thousands = regexp.MustCompile(`^([0-9]{1,6})([kK]|M|mio)$`)
	perTime   = regexp.MustCompile(`^([0-9]{1,12}) *(?:/|per|r/|rp) *([smhd]|sec|second|min|minute|hour|day)s?$`)
)

// rateUnits maps the first letter of a unit of time to a period and to a unit of the reference form.
var rateUnits = map[byte][2]string{'s': {"1s", "second"}, 'm': {"1m", "minute"}, 'h': {"1h", "hour"}, 'd': {"1d", "day"}}

// largest returns the bound that a message states for key if a number does not fit into 64 bits. The value of
// key may have a smaller bound, which other code checks.
func largest(key string) string {
	switch key {
	case "requests_per_unit", "unit_multiplier":
		return "4294967295"
	case "rate", "capacity", "max_reserved", "initial":
		return "9007199254740992" // 2^53; computations with larger numbers are not exact
	default:
		return "9223372036854775807"
	}
}

// isTooLarge reports whether n, which could not be read as an int64, is a whole number above the maximum of every
// key.
func isTooLarge(n *yaml.Node) bool {
	digits := strings.ReplaceAll(strings.TrimPrefix(n.Value, "+"), "_", "")
	return n.Kind == yaml.ScalarNode && n.Style&quoted == 0 && len(digits) > 18 && strings.Trim(digits, "0123456789") == ""
}

func wholeAdvice(key string, n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode {
		return ""
	}
	if found := thousands.FindStringSubmatch(n.Value); found != nil {
		zeros := "000"
		if found[2] != "k" && found[2] != "K" {
			zeros = "000000"
		}
		return fmt.Sprintf("; write %s%s", found[1], zeros)
	}
	if found := perTime.FindStringSubmatch(n.Value); found != nil && (key == "rate" || key == "requests_per_unit") {
		unit := rateUnits[found[2][0]]
		if key == "rate" {
			return fmt.Sprintf("; write rate: %s, period: %s", found[1], unit[0])
		}
		return fmt.Sprintf("; write requests_per_unit: %s, unit: %s", found[1], unit[1])
	}
	_, notWhole := strconv.ParseInt(n.Value, 0, 64)
	number, notNumber := strconv.ParseFloat(n.Value, 64)
	switch {
	case n.ShortTag() == "!!str" && notWhole == nil:
		return "; remove the quotes"
	case n.ShortTag() == "!!float" && notNumber == nil && number == float64(int64(number)):
		return fmt.Sprintf("; write %d", int64(number))
	default:
		return ""
	}
}

func spanAdvice(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" {
		return fmt.Sprintf(" without a unit; write %ss for seconds", short(n.Value))
	}
	return ""
}

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
