// Package logthrottle keeps a log readable while the same goes wrong again and again.
package logthrottle

import (
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Log is log with each message once in every span at the most.
func Log(log *zap.Logger, every time.Duration) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, every, 1, 0)
	}))
}
