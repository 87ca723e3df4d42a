package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/server"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

type serveCmd struct{ serveSettings }

func (serveCmd) Help() string {
	return `Buckets are kept in memory, or in Redis if --redis-url is given. The configuration is
loaded again when its files change, and on SIGHUP. A configuration with a mistake is
rejected, and the last valid one stays in use.

After SIGTERM the sidecar is not ready, but serves for --drain-delay. Then it waits up to
--drain-timeout for the requests in flight, and stops.

Example:

  rlsidecar serve --config limits.yaml
  rlsidecar serve --config /etc/rlsidecar/ --grpc-listen unix:///run/rlsidecar.sock
  rlsidecar serve --config limits.yaml --redis-url redis+sentinel://s1,s2,s3/main
  rlsidecar serve --xds-server control-plane:18001 --xds-node-id edge --start-without-config`
}

func (c *serveCmd) Run(a *app) error {
	if removed := removedVariables(); removed != nil {
		return exitError{exitUsage, errors.New(strings.Join(removed, "\n"))}
	}
	if a.reference.err != nil {
		return exitError{exitUsage, a.reference.err}
	}
	settings, err := c.settings(a.reference)
	if err != nil {
		return exitError{exitUsage, err}
	}
	if err := readable(c.Paths); err != nil {
		return err
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	settings.Hangup = hangup

	log := newLogger(a.stderr, c.LogLevel, c.LogFormat)
	for _, w := range a.reference.Warnings {
		log.Warn("environment", zap.String("warning", w))
	}
	if fits := fitMemory(log); settings.MemoryMaxKeys == 0 {
		settings.MemoryMaxKeys = fits
	}
	err = server.Run(a.ctx, settings, log, func(r server.Running) {
		if c.LogFormat == "text" { // not for json, because programs that read JSON expect nothing else
			fmt.Fprint(a.stderr, greeting(r, !settings.NoJSON))
		}
	})
	if problems, ok := errors.AsType[config.Problems](err); ok {
		for _, p := range problems {
			fmt.Fprintln(a.stderr, p)
		}
		return exitError{code: exitNo}
	}
	if unusable, ok := errors.AsType[server.UnusableRedis](err); ok {
		return exitError{exitNo, unusable}
	}
	return err
}

// settings returns the configuration of the server. It returns an error for a mistake in the settings.
func (c *serveCmd) settings(r reference) (s server.Config, err error) {
	if len(c.Paths) == 0 && c.XDS.Server == "" {
		return s, errors.New("no configuration: give --config PATH or --xds-server HOST:PORT, or set RUNTIME_ROOT")
	}
	s = c.Config
	s.Version, s.Revision = build()
	s.Defaults, s.LogListen, s.HTTPHeaders, s.NoJSON = c.options(r), c.configSettings.LogListen, httpapi.HeaderSets(c.HTTPHeaders), c.HTTPJSON == "off"
	s.Modes = limiter.Modes{Shadow: c.ShadowMode, Quota: c.QuotaMode}
	s.Answers = grpcapi.Options{
		Metadata: c.DynamicMetadata || c.ReferenceMetadata, DeniedBy: c.DynamicMetadata,
		Bounds: grpcapi.Bounds{Descriptors: c.MaxDescriptors, Entries: c.MaxEntries},
	}
	if c.XDS.Server != "" && c.Consume == "auto" {
		// Control planes write limits for the reference server, and proxies charge some of these limits after
		// the work (token usage). A denied charge must still consume, or the work would be free.
		s.Defaults.ConsumeEach = true
	}
	if c.ResponseHeaders {
		s.Answers.Headers = &grpcapi.Headers{Limit: c.LimitHeader, Remaining: c.RemainingHeader, Reset: c.ResetHeader}
	}
	if c.Tracing {
		s.Tracing = &r.Tracing
		s.Tracing.Version = s.Version
	}
	if s.XDS, err = c.xds(); err != nil {
		return s, err
	}
	if s.Statsd, err = c.statsd(r); err != nil {
		return s, err
	}
	if err := s.Answers.Bounds.Check(); err != nil { // grpcapi takes 0 as the default; a setting must not be 0
		return s, err
	}
	return s, s.Check()
}

func newLogger(w io.Writer, level, format string) *zap.Logger {
	at, _ := zapcore.ParseLevel(level) // kong has already checked the value
	c := zap.NewProductionEncoderConfig()
	c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	c.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(c)
	if format == "text" {
		c.EncodeTime = zapcore.RFC3339TimeEncoder
		c.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(c)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), at))
}

// bytesPerKey is a generous estimate of the memory of a bucket. docs/performance.md has the measurement: about
// 110 bytes with a key of 31 bytes. The estimate is twice as large because of garbage.
const bytesPerKey = 256

// fitMemory adapts the program to the memory limit of its container. A process that exceeds the limit is
// OOM-killed, and all its buckets are lost. fitMemory sets the memory limit of the garbage collector to nine
// tenths of that limit, unless GOMEMLIMIT is set. It returns the number of buckets that fit into half of the
// garbage collector's limit, at most memory.DefaultMaxKeys. Without a limit it returns memory.DefaultMaxKeys.
func fitMemory(log *zap.Logger) (maxKeys int) {
	limit, err := memlimit.Set()
	if err != nil {
		log.Debug("the memory limit of this process is not known", zap.Error(err)) // the system is not Linux, or has no cgroups
	}
	if limit == math.MaxInt64 {
		return memory.DefaultMaxKeys
	}
	maxKeys = keysWithin(limit)
	log.Info("memory is limited", zap.Int64("bytes", limit), zap.Int("max_keys", maxKeys))
	return maxKeys
}

func keysWithin(bytes int64) int {
	return int(min(memory.DefaultMaxKeys, max(1, bytes/2/bytesPerKey)))
}
