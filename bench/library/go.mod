module github.com/rlsidecar/rlsidecar/bench/library

go 1.26.0

replace github.com/rlsidecar/rlsidecar => ../..

require (
	github.com/rlsidecar/rlsidecar v0.0.0-00010101000000-000000000000
	github.com/sethvargo/go-limiter v0.7.1
	github.com/throttled/throttled/v2 v2.15.0
	golang.org/x/time v0.16.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/hashicorp/golang-lru v0.5.4 // indirect
)
