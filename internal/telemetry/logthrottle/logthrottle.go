// Package logthrottle limits how often a message is logged.
package logthrottle

import (
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Log returns a logger that logs each message at most once in each interval of length every.
func Log(log *zap.Logger, every time.Duration) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, every, 1, 0)
	}))
}
