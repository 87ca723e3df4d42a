"""Sends requests to a sidecar with a Python gRPC client, and prints the answers: client.py TARGET [CA_FILE]."""
import sys, time
import grpc

target, ca = sys.argv[1], sys.argv[2:]
options = [
    ("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0),
    ("grpc.default_authority", "sidecar"),
]
if ca:
    credentials = grpc.ssl_channel_credentials(open(ca[0], "rb").read())
    channel = grpc.secure_channel(target, credentials, options + [("grpc.ssl_target_name_override", "sidecar")])
else:
    channel = grpc.insecure_channel(target, options)

SERVICE = "/envoy.service.ratelimit.v3.RateLimitService/"
unary = {name: channel.unary_unary(name) for name in (SERVICE + "ShouldRateLimit", SERVICE + "Nonsense", "/grpc.health.v1.Health/Check")}
states = []
channel.subscribe(states.append)


def varint(n):
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)


def field(number, value):
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def request(*entries, domain=b"clients"):
    """A RateLimitRequest with a descriptor for each entry."""
    return field(1, domain) + b"".join(field(2, field(1, field(1, k.encode()) + field(2, v.encode()))) for k, v in entries)


def call(name, message, **more):
    """The overall code of an answer, or the gRPC status of an error."""
    try:
        answer = unary[name](message, timeout=more.pop("timeout", 30), **more)
    except grpc.RpcError as e:
        return f"{e.code().name}: {e.details()}"
    return {b"\x08\x01": "OK", b"\x08\x02": "OVER_LIMIT"}.get(answer[:2], answer)


def decide(*entries, **more):
    return call(SERVICE + "ShouldRateLimit", request(*entries), **more)


def report(what, *results):
    print(what + ":", *results, flush=True)


once = [decide(("once", "a")) for _ in range(2)]
report("once", *once)

futures = [unary[SERVICE + "ShouldRateLimit"].future(request(("thousand", "a")), timeout=30) for _ in range(1500)]
codes = [f.result()[:2] for f in futures]
report("1500 at once", codes.count(b"\x08\x01"), "OK,", codes.count(b"\x08\x02"), "OVER_LIMIT")

report("gzip", decide(("user", "a" * 5000), compression=grpc.Compression.Gzip))
report("deflate", decide(("user", "a" * 5000), compression=grpc.Compression.Deflate))
report("long metadata", decide(("user", "a"), metadata=[("x-long", "x" * 40_000), ("x-more-bin", b"\x00\xff" * 10_000)]))
answer = unary[SERVICE + "ShouldRateLimit"](request(*[("user", str(i)) for i in range(1000)]), timeout=30)
report("an answer of more than a frame", len(answer) > 16384)

report("held", decide(("held", "a")), decide(("held", "a")))
report("held longer than its deadline", decide(("held", "b")), decide(("held", "b"), timeout=0.8))

report("not a message", call(SERVICE + "ShouldRateLimit", b"\xff\xff\xff"))
report("no domain", call(SERVICE + "ShouldRateLimit", request(("user", "a"), domain=b"")))
report("empty", call(SERVICE + "ShouldRateLimit", b""))
report("no such method", call(SERVICE + "Nonsense", b""))

report("health", unary["/grpc.health.v1.Health/Check"](b"", timeout=30))
watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=30)
report("watched health", next(watch))
reflection = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")(iter([field(7, b"")]), timeout=30)
report("reflection", SERVICE.strip("/").encode() in next(reflection))

time.sleep(2.5)  # the client sends keepalive pings once a second
report("still", decide(("user", "a")))
watch.cancel()
report("connections", states.count(grpc.ChannelConnectivity.READY))
channel.close()
