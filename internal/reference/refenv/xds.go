package refenv

import (
	"math"
	"strings"
	"time"
)

// XDS says which server streams the configuration (CONFIG_TYPE=GRPC_XDS_SOTW).
type XDS struct {
	Server string // host:port
	// NodeID and NodeMetadata are what the server knows this process by.
	NodeID       string
	NodeMetadata map[string]string
	// Headers go with the stream.
	Headers map[string]string
	// UseTLS: with CA to trust ("": the system's), ServerName to expect ("": that of Server), and Cert
	// and Key to show, if any. All but the name are PEM files.
	UseTLS              bool
	CA, Cert, Key       string
	ServerName          string
	BackoffInitial      time.Duration
	BackoffMax          time.Duration
	MaxMessageSize      int // 0: as much as a file
	StartWithoutInitial bool
}

func (r *reader) readXDS() {
	start := r.bool("FORCE_START_WITHOUT_INITIAL_CONFIG")
	if r.choice("CONFIG_TYPE", "file", "grpc_xds_sotw") != "grpc_xds_sotw" {
		return
	}
	r.XDS = &XDS{
		Server:              r.value("CONFIG_GRPC_XDS_SERVER_URL"),
		NodeID:              r.value("CONFIG_GRPC_XDS_NODE_ID"),
		NodeMetadata:        r.pairs("CONFIG_GRPC_XDS_NODE_METADATA", "=:"), // = is what that server reads, : what its comment shows
		Headers:             r.pairs("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", ":"),
		UseTLS:              r.bool("CONFIG_GRPC_XDS_SERVER_USE_TLS"),
		CA:                  r.value("CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
		Cert:                r.value("CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
		Key:                 r.value("CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
		ServerName:          r.value("CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
		BackoffInitial:      r.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"),
		BackoffMax:          r.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL"),
		MaxMessageSize:      r.integer("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", math.MaxInt32),
		StartWithoutInitial: start,
	}
	if x := r.XDS; (x.Cert == "") != (x.Key == "") {
		r.mistake("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "a client certificate needs CONFIG_GRPC_XDS_CLIENT_TLS_KEY too, and the other way round")
	}
}

// pairs reads a list of name and value, with one of the separators between them.
func (r *reader) pairs(name, separators string) map[string]string {
	pairs := map[string]string{}
	for pair := range strings.SplitSeq(r.value(name), ",") {
		pair = strings.TrimSpace(pair)
		if pair == "" {
			continue
		}
		i := strings.IndexAny(pair, separators)
		if i < 1 {
			r.mistake(name, "write name%svalue, with commas between several", separators[:1])
			break
		}
		pairs[pair[:i]] = pair[i+1:]
	}
	return pairs
}
