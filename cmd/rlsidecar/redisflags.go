package main

import (
	"time"

	"github.com/rlsidecar/rlsidecar/internal/server"
)

// redisFlags say which Redis keeps the buckets.
type redisFlags struct {
	RedisURL          string        `name:"redis-url" placeholder:"URL" env:"RLSIDECAR_REDIS_URL" help:"Keep buckets in Redis: redis://[user:pass@]host:port/db, rediss://, unix:///path, redis+sentinel://h1:p,h2:p/master or redis+cluster://h1:p,h2:p."`
	RedisPerSecondURL string        `name:"redis-per-second-url" placeholder:"URL" env:"RLSIDECAR_REDIS_PER_SECOND_URL" help:"Keep the buckets of limits by the second in this Redis instead, as REDIS_PERSECOND does."`
	BackendTimeout    time.Duration `default:"10ms" env:"RLSIDECAR_BACKEND_TIMEOUT" help:"How long Redis may take; then on_backend_failure answers (${default})."`
	RedisKeyPrefix    string        `default:"rl:" placeholder:"TEXT" env:"RLSIDECAR_REDIS_KEY_PREFIX" help:"Start of every key (${default})."`
	RedisPasswordFile string        `placeholder:"FILE" env:"RLSIDECAR_REDIS_PASSWORD_FILE" help:"File with password or user:password; read again for every connection."`
	RedisWaitReplicas int           `placeholder:"N" env:"RLSIDECAR_REDIS_WAIT_REPLICAS" help:"Replicas that must confirm a charge before it counts; with all of them a failover loses none (0)."`
	RedisTLSCA        string        `name:"redis-tls-ca" placeholder:"FILE" env:"RLSIDECAR_REDIS_TLS_CA" help:"CA of the server, for rediss://."`
	RedisTLSCert      string        `name:"redis-tls-cert" placeholder:"FILE" env:"RLSIDECAR_REDIS_TLS_CERT" help:"Client certificate; read again for every connection."`
	RedisTLSKey       string        `name:"redis-tls-key" placeholder:"FILE" env:"RLSIDECAR_REDIS_TLS_KEY" help:"Its key."`
	RedisTLSAnyName   bool          `name:"redis-tls-skip-hostname" env:"RLSIDECAR_REDIS_TLS_SKIP_HOSTNAME" help:"Take any name in the server's certificate; who signed it still counts."`
}

func (f redisFlags) redis() server.Redis {
	return server.Redis{
		URL: f.RedisURL, PerSecondURL: f.RedisPerSecondURL, Timeout: f.BackendTimeout, KeyPrefix: f.RedisKeyPrefix, PasswordFile: f.RedisPasswordFile,
		WaitReplicas: f.RedisWaitReplicas,
		CA:           f.RedisTLSCA, Cert: f.RedisTLSCert, Key: f.RedisTLSKey, SkipHostname: f.RedisTLSAnyName,
	}
}
