package refenv

import (
	"math"
	"strings"
	"time"
)

// XDS is the control plane that streams the configuration (CONFIG_TYPE=GRPC_XDS_SOTW).
type XDS struct {
	Server string // host:port
	// NodeID and NodeMetadata identify this process to the control plane.
	NodeID       string
	NodeMetadata map[string]string
	// Headers are sent when the stream is opened.
	Headers map[string]string
	// UseTLS enables TLS. CA, Cert and Key are names of PEM files. Without CA, the system's CAs are trusted. Without
	// Cert, no client certificate is sent. ServerName is the expected name in the control plane's certificate. ""
	// means the host of Server.
	UseTLS              bool
	CA, Cert, Key       string
	ServerName          string
	BackoffInitial      time.Duration
	BackoffMax          time.Duration
	MaxMessageSize      int // in bytes; 0 means the default of --xds-max-message
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
		NodeMetadata:        r.pairs("CONFIG_GRPC_XDS_NODE_METADATA", "=:"), // the reference server expects "=", but its documentation shows ":"
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
		r.mistake("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "a client certificate needs both a certificate and CONFIG_GRPC_XDS_CLIENT_TLS_KEY")
	}
}

// pairs parses a list of pairs, with commas between them. One of separators stands between the name and the value of a
// pair.
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
