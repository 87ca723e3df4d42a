// Package logthrottle limits how often a message is logged.
package logthrottle

import (
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Log returns a logger that logs each message at most once in each interval.
func Log(log *zap.Logger, interval time.Duration) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, interval, 1, 0)
	}))
}
