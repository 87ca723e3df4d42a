package refenv

import (
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/statsd"
)

// The reference server uses one of StatsD (the default), DogStatsD and Prometheus. Here Prometheus can be combined with
// either of the others.
func (r *reader) statsd() {
	dog := r.bool("USE_DOG_STATSD")
	plain := r.bool("USE_STATSD")
	if r.given("USE_STATSD") == "" && (!r.asServer || dog || r.bool("USE_PROMETHEUS")) {
		plain = false
	}
	interval := r.duration("STATS_FLUSH_INTERVAL")
	protocol := r.choice("STATSD_PROTOCOL", "tcp", "udp")
	address := net.JoinHostPort(r.value("STATSD_HOST"), strconv.Itoa(r.integer("STATSD_PORT", 65535)))
	switch {
	case dog && plain:
		r.mistake("USE_DOG_STATSD", "USE_STATSD is true too; set it to false")
		return
	case dog:
		r.Values["statsd-format"] = "dogstatsd"
		r.Values["statsd-protocol"] = "udp" // STATSD_PROTOCOL applies only to StatsD
		r.rewrites()
	case plain:
		r.Values["statsd-protocol"] = protocol
	default:
		return
	}
	r.Values["statsd-address"] = address
	if interval > 0 {
		r.Values["statsd-interval"] = interval.String()
	} else {
		r.mistake("STATS_FLUSH_INTERVAL", "write a duration above 0, such as 10s")
	}
	if tags := r.given("EXTRA_TAGS"); tags != "" {
		r.pairs("EXTRA_TAGS", ":")
		r.Values["statsd-tags"] = tags
	}
}

// rewrites reads USE_DOG_STATSD_MOGRIFIERS, a list of names of rewrites. Each rewrite has variables of its own. The
// reference server tries the rewrites in no particular order. Here, their order is that of the list.
func (r *reader) rewrites() {
	for name := range strings.SplitSeq(r.given("USE_DOG_STATSD_MOGRIFIERS"), ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		prefix := "DOG_STATSD_MOGRIFIER_" + name + "_"
		pattern, err := regexp.Compile(r.env[prefix+"PATTERN"])
		switch {
		case r.env[prefix+"PATTERN"] == "":
			r.mistake("USE_DOG_STATSD_MOGRIFIERS", "%sPATTERN is not set; write a regular expression for the names that it changes", prefix)
			continue
		case err != nil:
			r.mistake("USE_DOG_STATSD_MOGRIFIERS", "%sPATTERN: %v", prefix, err)
			continue
		case r.env[prefix+"NAME"] == "":
			r.mistake("USE_DOG_STATSD_MOGRIFIERS", "%sNAME is not set; write the new name, in which $1 is the text that the first group matched", prefix)
			continue
		}
		rewrite := statsd.Rewrite{Pattern: pattern, Name: r.env[prefix+"NAME"], Tags: map[string]string{}}
		for pair := range strings.SplitSeq(r.env[prefix+"TAGS"], ",") {
			key, value, ok := strings.Cut(strings.TrimSpace(pair), ":")
			switch {
			case pair == "":
			case !ok || key == "" || value == "":
				r.mistake("USE_DOG_STATSD_MOGRIFIERS", "%sTAGS has %q; write tag:value,tag:value", prefix, pair)
			default:
				rewrite.Tags[key] = value
			}
		}
		r.Rewrites = append(r.Rewrites, rewrite)
	}
}
