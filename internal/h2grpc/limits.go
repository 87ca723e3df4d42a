package h2grpc

import "time"

// The bounds of one connection. Proxies are far from all of them.
const (
	// maxFrame is the longest frame taken, and sent: what every HTTP/2 implementation takes.
	maxFrame = 16 << 10
	// readBuffer holds a frame of the greatest length, and some more.
	readBuffer = 32 << 10
	// backlog is how many bytes a read brings at least if there are more to be read: half a record of TLS.
	backlog = 8 << 10
	// reading is how long a read takes at most that does not have to wait.
	reading = 100 * time.Microsecond

	// maxStreams is how many requests may be under way; more are refused, and may be sent again. Envoy
	// does not wait to hear of it, so it is more than it sends.
	maxStreams = 16 << 10
	// maxFree is how many of them are kept for others when they are over.
	maxFree = 64
	// maxOthers is how many of those may be handed over: each costs goroutines.
	maxOthers = 256

	// maxHeaders bounds what the header fields of a request come to (RFC 9113, 6.5.2), maxHeaderBlock
	// their encoded form and maxContinuations the frames in which that comes.
	maxHeaders       = 256 << 10
	maxHeaderBlock   = 256 << 10
	maxContinuations = 64

	// shortBlock is the longest block that is decoded with the connection's lock held: in some ten microseconds.
	shortBlock = 2 << 10
	// maxKnown is the longest block that is remembered. Those of proxies have some 60 bytes, more where they
	// send the path each time.
	maxKnown = 1 << 10
	// maxMessage is grpc-go's.
	maxMessage = 4 << 20
	// streamWindow is what a client may send on one stream unasked: a message of the greatest length.
	streamWindow = maxMessage + 64<<10
	// connWindow is what it may send on the connection before it hears of us.
	connWindow = 4 * streamWindow
	// maxBuffered bounds the bytes of requests that are not whole, and those of requests that are submitted. One more
	// that is not whole is denied; while there are more of the others nothing is read.
	maxBuffered = 2 * streamWindow
	// maxStuck bounds the bytes of answers that the client's windows do not let through; one more is
	// reset. maxOut comes before it where the client reads slowly.
	maxStuck = 2 * streamWindow
	// maxRefused is how much of a request that is not gRPC is read before it is answered.
	maxRefused = 64 << 10
	// maxOut is how much may wait to be written before nothing more is read.
	maxOut = 256 << 10

	// maxBatch is how many requests are put to the method together, and maxWeight of which weight, but for one
	// request alone. A Store takes so many charges in one call. What is decoded takes about 1 KiB for each.
	maxBatch, maxWeight = 256, 256
	// maxOutstanding is the weight of all that is submitted and not answered: a few calls of the Store's, because more
	// would only wait there. A connection may always have ownOutstanding.
	maxOutstanding, ownOutstanding = 2048, 64

	// maxHeld bounds the bytes that all connections together keep of requests that are not whole or are submitted, and
	// of answers that wait for the client. Beyond it the connections that keep most are treated as if they had
	// reached their own bounds, an equal share of maxHeld, but at least ownHeld. So all together keep at most
	// twice as much.
	maxHeld, ownHeld = 32 << 20, 64 << 10

	// calm is how many frames that mean no work may come in a Tick beyond one for each answer; the
	// connection ends then. They are resets, settings, priorities, window updates, empty frames, and
	// frames of streams that are over. Each costs some 100 ns.
	calm = 10_000
	// streamsLookedAt is how many streams a frame that concerns all may concern to count for one more.
	streamsLookedAt = 64
	// otherReset is what the reset of a stream that was handed over counts for.
	otherReset = 50

	// greeting is how long the TLS handshake and the client's preface may take.
	greeting = 20 * time.Second
	// blockTimeout is how long the frames of one header block may take.
	blockTimeout = 20 * time.Second
	// wholeTimeout is how long a request without a deadline may take to come.
	wholeTimeout = time.Minute
	// writeTimeout is how long the client may take none of what is written.
	writeTimeout = 20 * time.Second
	// lingering is how long a client that has been told why its connection ends may take to read it.
	lingering = 250 * time.Millisecond
	// leaving is how long it may take to close a connection on which all is answered.
	leaving = time.Second

	// An idle client is asked whether it is there still, and has so long to answer; grpc-go's.
	idlePing, idleAnswer = 2 * time.Hour, 20 * time.Second
	// drainAnswer is how long a client may take to see that the connection ends; grpc-go's.
	drainAnswer = 5 * time.Second
	// pingEvery is how often pings may come with no answer in between: the documented 5 s, less a tenth because
	// clients and networks are not punctual. pingStrikes is how many more are tolerated.
	pingEvery, pingStrikes = 4500 * time.Millisecond, 2
)
