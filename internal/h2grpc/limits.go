package h2grpc

import "time"

// These are the bounds of each connection. Only maxOutstanding and Config.BufferedBytes bound all connections together.
const (
	// maxFrame is the longest frame received and sent: the size that every HTTP/2 implementation supports.
	maxFrame = 16 << 10
	// readBuffer is the size of the read buffer. A frame of the greatest length fits.
	readBuffer = 32 << 10
	// backlog is half of the longest TLS record, in bytes. A read that returns fewer bytes is assumed to have emptied
	// the socket.
	backlog = 8 << 10
	// reading is the longest duration of a read that does not have to wait for the client.
	reading = 100 * time.Microsecond

	// maxStreams is the largest number of requests in flight. Further requests are refused, and the client
	// may send them again. Envoy sends requests before it has received this setting, so the bound is higher
	// than the number that Envoy sends.
	maxStreams     = 16 << 10
	maxFreeStreams = 64
	// maxOthers is the number of streams that Config.Others serves at a time, because each costs goroutines.
	maxOthers = 256

	// maxHeaders bounds the size of the header fields of a request (RFC 9113, 6.5.2), maxHeaderBlock the bytes of
	// their encoded form, and maxContinuations the number of its CONTINUATION frames.
	maxHeaders       = 256 << 10
	maxHeaderBlock   = 256 << 10
	maxContinuations = 64

	// shortBlock is the longest block that is decoded with the connection's lock held; it takes about ten microseconds.
	shortBlock = 2 << 10
	// maxKnown is the length of the longest block whose meaning is cached. The blocks of proxies have about
	// 60 bytes, or more if they contain the path each time.
	maxKnown = 1 << 10
	// maxMessage is the longest message, the default of grpc-go.
	maxMessage = 4 << 20
	// streamWindow is the window of a stream: a message of the greatest length, and 64 KiB for its prefix and padding.
	streamWindow = maxMessage + 64<<10
	connWindow   = 4 * streamWindow
	// maxBuffered bounds the bytes of incomplete requests, and separately those of submitted requests. An
	// incomplete request that exceeds it is denied, or reset if Config.Others serves it. While the submitted
	// requests exceed it, the connection is not read.
	maxBuffered = 2 * streamWindow
	// maxStalled bounds the bytes of answers that wait for the client's windows. Beyond it, streams are
	// reset. A client that reads slowly reaches maxOut first.
	maxStalled = 2 * streamWindow
	// maxRefused is the number of body bytes after which a request with a refusal is answered, although it is
	// incomplete.
	maxRefused = 64 << 10
	// maxOut is the number of bytes that may wait to be written. While there are more, the connection is not read.
	maxOut = 256 << 10

	// maxBatch bounds the number of requests in one batch. A batch is full when its weight reaches maxWeight; its
	// last request may exceed that. maxWeight is also the number of charges that package redis sends in one call.
	// Decoded requests need about 1 KiB each.
	maxBatch, maxWeight = 256, 256
	// maxOutstanding bounds the weight of all requests that are submitted and not answered. It is enough for a few
	// calls of the Store. More requests would only wait in the Store. A connection may have a weight of
	// ownOutstanding even beyond that.
	maxOutstanding, ownOutstanding = 2048, 64

	// maxTotalBuffered is the default of Config.BufferedBytes. While all connections together hold more than that,
	// conn.allowance lowers the bounds of each connection, at most down to ownBuffered. The bytes are those of
	// incomplete requests, of submitted requests, and of answers that wait for the client's windows.
	maxTotalBuffered, ownBuffered = 32 << 20, 64 << 10

	// framesPerTick is the number of frames without a request that are allowed in each Tick, in addition to one for each
	// answer. More of them end the connection. Such frames are resets, settings, priorities, pings, GOAWAYs, window
	// updates, empty DATA, frames of streams that have ended, frames of unknown types, and frames that complete a
	// request which is malformed or refused. Most of them take about 100 ns.
	framesPerTick = 10_000
	// streamsChecked applies to frames that visit all open streams: such a frame counts as one more frame for every
	// streamsChecked of these streams.
	streamsChecked = 64
	// otherReset is the number of frames that the reset of a stream of Config.Others counts as.
	otherReset = 50

	// handshakeTimeout is the time for the TLS handshake and the client's preface.
	handshakeTimeout = 20 * time.Second
	// blockTimeout is the time for all frames of one header block.
	blockTimeout = 20 * time.Second
	// wholeTimeout is the time in which a request must arrive completely. An earlier deadline of the request
	// shortens it.
	wholeTimeout = time.Minute
	writeTimeout = 20 * time.Second
	// goAwayTimeout is the time that a client has to read the reason why its connection ends.
	goAwayTimeout = 250 * time.Millisecond
	// halfCloseTimeout is the time that a client has to close a drained connection after the last answer.
	halfCloseTimeout = time.Second

	// A client that has sent nothing for idlePing gets a ping. It must answer within idleAnswer. Both are the
	// values of grpc-go.
	idlePing, idleAnswer = 2 * time.Hour, 20 * time.Second
	// drainAnswer is the time that a client has to answer the ping that follows the first GOAWAY, as in
	// grpc-go.
	drainAnswer = 5 * time.Second
	// pingEvery is the shortest permitted interval between two pings with no answer to a request in between. It is a
	// tenth less than the 5 s of docs/envoy.md, because clients and networks are not punctual. maxEarlyPings is the
	// number of pings at shorter intervals that are tolerated.
	pingEvery, maxEarlyPings = 4500 * time.Millisecond, 2
)
