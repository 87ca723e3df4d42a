package h2grpc

import (
	"time"
	"unsafe"
)

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
	// streamBytes is the approximate memory of an open stream: the stream, its entry in conn.open, and small
	// allocations. otherBytes is that of a stream of Config.Others, with the goroutines and buffers of grpc-go. The
	// header fields of such a stream, which grpc-go keeps in maps, need up to headerFactor times their size.
	streamBytes              = int(unsafe.Sizeof(stream{})) + 128
	otherBytes, headerFactor = 28 << 10, 4
	// fewStreams, fewFields and keptOut are the sizes up to which conn.open, headReader.fields and the buffers of
	// outgoing keep their memory after a flood.
	fewStreams, fewFields, keptOut = 256, 64, 64 << 10

	// maxHeaders bounds the size of the header fields of a request (RFC 9113, 6.5.2), maxHeaderBlock the bytes of
	// their encoded form, and maxContinuations the number of its CONTINUATION frames.
	maxHeaders       = 256 << 10
	maxHeaderBlock   = 256 << 10
	maxContinuations = 64
	// maxFields is the number of header fields in one block beyond which the connection ends. Since each field counts
	// for at least 32 bytes of maxHeaders, the fields are then more than twice as long as maxHeaders.
	maxFields = 2 * maxHeaders / 32
	// turnWork is the size of the decoded header fields after which a connection yields to the others before its next
	// frame. A block of a few bytes can refer to the table's fields of 4 KiB many times. Decoding the fields of a turn
	// takes less than a millisecond.
	turnWork = 256 << 10
	// othersPerTurn is the number of streams that a connection passes to Config.Others, or ends there, before it yields.
	// Each makes goroutines that need about 50 us together.
	othersPerTurn = 8

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
	// maxBuffered bounds the memory of incomplete requests, of streams of Config.Others, of delayed answers and of answers
	// that wait for the client's windows, and separately the memory of submitted requests. Beyond the bound, an incomplete
	// request is denied, or reset if Config.Others serves it, a further stream of Config.Others is refused, a request whose
	// answer would be delayed is denied, and an answer that would have to wait for windows is reset. While the submitted
	// requests exceed it, the connection is not read. There is room for the bodies of two requests of the greatest length.
	maxBuffered = 2*streamWindow + 1<<20
	// maxRefused is the number of body bytes after which a request with a refusal is answered, although it is
	// incomplete.
	maxRefused = 64 << 10
	// maxOut is the number of bytes that may wait to be written. While there are more, the connection is not read.
	maxOut = 256 << 10

	// maxBatch bounds the number of requests in one batch. A batch is full when its weight reaches maxWeight; its
	// last request may exceed that. maxWeight is also the number of charges that package redis sends in one call.
	// Decoded requests need about 1 KiB each.
	maxBatch, maxWeight = 256, 256
	// leastTurn is the number of requests that a connection may submit in one turn, however many connections do. With
	// fewer, most of its time would be the cost of a turn.
	leastTurn = 128
	// maxOutstanding bounds the weight of all requests that are submitted and not answered. With 8192, ten connections
	// with a thousand requests each leave a client with few requests no time. A connection may have a weight of
	// ownOutstanding even beyond that.
	maxOutstanding, ownOutstanding = 2048, 64

	// maxTotalBuffered is the default of Config.BufferedBytes. While all connections together hold more than that,
	// conn.allowance lowers the bounds of each connection, at most down to ownBuffered. The bytes are those of
	// conn.held, of submitted requests, of slotAnswers, and of frames that wait while another goroutine writes.
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

	// A connection remembers the last slotAnswersKept answers with slots, but not those that are older than answerAge, nor
	// more than slotBytesKept bytes, nor more than conn.allowance. An answer takes about slotAnswerBytes beside its id.
	// Envoy resets a call within milliseconds of its answer.
	slotAnswersKept, slotAnswerBytes, answerAge = 4096, 128, 5 * time.Second
	slotBytesKept                               = 1<<20 + slotAnswersKept*slotAnswerBytes // 1 MiB of ids

	// handshakeTimeout is the time for the TLS handshake and the client's preface.
	handshakeTimeout = 20 * time.Second
	// blockTimeout is the time for all frames of one header block.
	blockTimeout = 20 * time.Second
	// wholeTimeout is the time in which a request must arrive completely. An earlier deadline of the request
	// shortens it.
	wholeTimeout = time.Minute
	writeTimeout = 20 * time.Second
	// windowTimeout is the time for which a client may keep an answer waiting for its windows.
	windowTimeout = 20 * time.Second
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
