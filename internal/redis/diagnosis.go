package redis

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

type diagnosis struct {
	// problem describes the error as a clause whose subject is the server, such as "refuses the password". It is
	// "" if the text of the error is clear enough.
	problem string
	// remedy describes what to do, as a clause. It is "" if that is unknown.
	remedy string
	// lasting means that waiting does not help: the settings of this program or of the server must change.
	lasting bool
}

// permissions lists everything that the Redis user needs for limits.
const permissions = "+evalsha +eval +mget +get +psetex +llen +lindex +rpush +lpush +lset +lpop +ltrim " +
	"+zadd +zrem +zrange +zrangebyscore +zremrangebyscore +zscore +del +pexpire +time +ping (in a cluster +set +asking +cluster; with --redis-wait-replicas +wait; for doctor +info) and the keys of the prefix"

const (
	otherForm     = "write redis://host:port for one server, redis+cluster:// for a Redis Cluster, or redis+sentinel:// for Sentinels"
	trustServer   = "set --redis-tls-ca to the CA of its certificate, and use the name in the certificate in --redis-url"
	setClientCert = "set --redis-tls-cert and --redis-tls-key to a client certificate that the server accepts"
	checkAddress  = "check the address and that the server runs"
	checkPause    = "check that the server runs, is not paused and runs no slow command, and that no firewall drops its packets"
	checkSecret   = "check the user and the password, in --redis-url or --redis-password-file"
)

// diagnose explains err. form is the form of the URL by which the server was called.
func diagnose(err error, form string) diagnosis {
	text := err.Error()
	switch {
	case isForbidden(err):
		return diagnosis{"does not grant its user the permissions that limits need", "the user needs " + permissions, true}
	case isReply(err, "NOAUTH"):
		return diagnosis{"requires a password, and none was given", checkSecret, true}
	case isReply(err, "WRONGPASS", "ERR AUTH", "ERR invalid password"):
		return diagnosis{"refuses the user or the password", checkSecret, true}
	case isReply(err, "ERR DB index"):
		return diagnosis{"has no database of this number", "correct the number at the end of --redis-url", true}
	case isReply(err, "MOVED ", "ASK ", "CROSSSLOT"):
		return diagnosis{"is a node of a Redis Cluster, and --redis-url names a single server", otherForm, true}
	case isReply(err, "ERR This instance has cluster support disabled"):
		return diagnosis{"is a single server, and --redis-url names a Redis Cluster", otherForm, true}
	case isReply(err, "ERR unknown command"):
		return diagnosis{"does not know a command that limits need: it may be a Sentinel, or another kind of server than the one in --redis-url", otherForm, true}
	case isReply(err, "READONLY") && form == "":
		return diagnosis{"is a replica", "point --redis-url at the master, at Sentinels or at the cluster", true}
	case isReply(err, "OOM"):
		return diagnosis{"has no memory left", "raise maxmemory, or find the keys that fill it", false}
	case isCompileError(err):
		return diagnosis{"cannot run the script of rlsidecar", "use Redis 6.2 or newer, or Valkey", true}
	case errors.Is(err, errNoMaster):
		return diagnosis{"does not know a master of this name", "correct the name at the end of --redis-url", true}
	case isTimeout(err):
		return diagnosis{"", checkPause, false}
	case strings.Contains(text, "refused"), strings.Contains(text, "no such host"):
		return diagnosis{"", checkAddress, false}
	case strings.HasPrefix(text, "redis: can't parse"), strings.HasPrefix(text, "redis: invalid reply"):
		return diagnosis{"does not answer as Redis does", checkAddress, true}
	}
	return diagnoseTLS(err)
}

func diagnoseTLS(err error) diagnosis {
	var (
		record  tls.RecordHeaderError
		alert   tls.AlertError
		verify  *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		file    *fs.PathError
	)
	switch {
	case errors.As(err, &record):
		return diagnosis{"does not use TLS at this port", "write redis:// instead of rediss://, or the port that uses TLS", true}
	case errors.As(err, &alert), strings.Contains(err.Error(), "remote error: tls:"):
		return diagnosis{"refuses the TLS connection", setClientCert, true}
	case errors.As(err, &verify), errors.As(err, &unknown), errors.As(err, &name):
		return diagnosis{"has a certificate that is not trusted", trustServer, true}
	case errors.As(err, &file):
		return diagnosis{"", "check that the file exists and that rlsidecar may read it", false}
	}
	return diagnosis{}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// isForbidden reports whether err means that the user may not run a command, called directly or by a script.
func isForbidden(err error) bool {
	return isReply(err, "NOPERM") ||
		isReply(err, "ERR") && (strings.Contains(err.Error(), "ACL failure in script") ||
			strings.Contains(err.Error(), "The user executing the script can't")) // Redis 6.2
}

func advice(err error, form string) string {
	if remedy := diagnose(err, form).remedy; remedy != "" {
		return textOf(err) + "; " + remedy
	}
	return textOf(err)
}

// textOf returns the text of err, without the beginning that all errors of a Store share, and without the arguments of
// commands, because one may be a password.
func textOf(err error) string {
	text := strings.TrimPrefix(err.Error(), backend.ErrNotTaken.Error()+": ")
	text = strings.TrimPrefix(text, backend.ErrUnavailable.Error()+": ")
	var reply goredis.Error
	if errors.As(err, &reply) {
		text, _, _ = strings.Cut(text, ", with args beginning with")
	}
	return text
}
