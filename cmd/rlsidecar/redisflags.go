package main

import (
	"time"

	"github.com/rlsidecar/rlsidecar/internal/server"
)

type redisFlags struct {
	RedisURL          string        `name:"redis-url" placeholder:"URL" env:"RLSIDECAR_REDIS_URL" help:"Keep buckets in Redis: redis://[user:pass@]host:port/db, rediss://, unix:///path, redis+sentinel://h1:p,h2:p/master or redis+cluster://h1:p,h2:p."`
	RedisPerSecondURL string        `name:"redis-per-second-url" placeholder:"URL" env:"RLSIDECAR_REDIS_PER_SECOND_URL" help:"Keep the buckets of limits per second in this second Redis, as the reference server does with REDIS_PERSECOND."`
	BackendTimeout    time.Duration `default:"10ms" env:"RLSIDECAR_BACKEND_TIMEOUT" help:"Deadline of a decision by Redis. After it, on_backend_failure decides (${default})."`
	RedisKeyPrefix    string        `default:"rl:" placeholder:"TEXT" env:"RLSIDECAR_REDIS_KEY_PREFIX" help:"Prefix of all keys in Redis (${default})."`
	RedisPasswordFile string        `placeholder:"FILE" env:"RLSIDECAR_REDIS_PASSWORD_FILE" help:"File with password or user:password. Read again for every connection."`
	RedisWaitReplicas int           `placeholder:"N" env:"RLSIDECAR_REDIS_WAIT_REPLICAS" help:"Number of replicas that must confirm a charge. If fewer confirm it in time, on_backend_failure decides. With the number of all replicas, a failover loses no charge (0)."`
	RedisTLSCA        string        `name:"redis-tls-ca" placeholder:"FILE" env:"RLSIDECAR_REDIS_TLS_CA" help:"CA that signed the certificate of Redis, for rediss://."`
	RedisTLSCert      string        `name:"redis-tls-cert" placeholder:"FILE" env:"RLSIDECAR_REDIS_TLS_CERT" help:"Client certificate. Read again for every connection."`
	RedisTLSKey       string        `name:"redis-tls-key" placeholder:"FILE" env:"RLSIDECAR_REDIS_TLS_KEY" help:"Private key of the client certificate."`
	RedisTLSAnyName   bool          `name:"redis-tls-skip-hostname" env:"RLSIDECAR_REDIS_TLS_SKIP_HOSTNAME" help:"Accept any host name in the certificate of Redis. It must still be signed by the CA."`
}

func (f redisFlags) redis() server.Redis {
	return server.Redis{
		URL: f.RedisURL, PerSecondURL: f.RedisPerSecondURL, Timeout: f.BackendTimeout, KeyPrefix: f.RedisKeyPrefix, PasswordFile: f.RedisPasswordFile,
		WaitReplicas: f.RedisWaitReplicas,
		CA:           f.RedisTLSCA, Cert: f.RedisTLSCert, Key: f.RedisTLSKey, SkipHostname: f.RedisTLSAnyName,
	}
}
